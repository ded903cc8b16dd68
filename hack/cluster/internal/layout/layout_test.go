package layout

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func checkout(t *testing.T, module string) string {
	t.Helper()
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "go.mod"), []byte("module "+module+"\n\ngo 1.26\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "a", "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestFindFromAnywhereInTheCheckout(t *testing.T) {
	t.Setenv(CacheEnv, "")
	root := checkout(t, modulePath)
	for _, from := range []string{root, filepath.Join(root, "a", "b")} {
		l, err := Find(from)
		if err != nil {
			t.Fatal(err)
		}
		if want := filepath.Join(root, ".cache", "bin", "etcd"); l.Binary("etcd") != want {
			t.Errorf("from %s: etcd is %s, want %s", from, l.Binary("etcd"), want)
		}
	}
}

func TestFindPassesOverModulesInside(t *testing.T) {
	root := checkout(t, modulePath)
	inner := filepath.Join(root, "a")
	if err := os.WriteFile(filepath.Join(inner, "go.mod"), []byte("module "+modulePath+"/inner\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Find(inner)
	if err != nil {
		t.Fatal(err)
	}
	if l.Checkout != root {
		t.Errorf("checkout is %s, want %s", l.Checkout, root)
	}
}

func TestFindOutside(t *testing.T) {
	if _, err := Find(checkout(t, "example.com/other")); err == nil || !strings.Contains(err.Error(), modulePath) {
		t.Errorf("Find = %v, want an error that names the module", err)
	}
}

func TestCacheMayLieElsewhere(t *testing.T) {
	elsewhere := t.TempDir()
	t.Setenv(CacheEnv, elsewhere)
	l, err := Find(checkout(t, modulePath))
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(elsewhere, "bin"); l.Bin != want {
		t.Errorf("binaries are in %s, want %s", l.Bin, want)
	}
}
