package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityNamesTestsThatExist: what docs/security.md says is shown by tests that are there.
func TestSecurityNamesTestsThatExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/security.md"))
	if err != nil {
		t.Fatal(err)
	}
	missing := map[string]bool{}
	for _, name := range regexp.MustCompile(`\b(Test|Fuzz)[A-Z][A-Za-z0-9]*\b`).FindAllString(string(text), -1) {
		missing[name] = true
	}
	if len(missing) < 10 {
		t.Fatalf("the page names %d tests: the test looks for the wrong thing", len(missing))
	}
	for _, folder := range []string{"cmd", "internal", "pkg", "test"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			code, err := os.ReadFile(path)
			for name := range missing {
				if strings.Contains(string(code), "func "+name+"(") {
					delete(missing, name)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name := range missing {
		t.Errorf("there is no %s", name)
	}
}
