package console

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/reasons.md promises every word that the operator uses: each is looked for where the code makes it.
func TestTheReferenceHasEveryWord(t *testing.T) {
	page, err := os.ReadFile("../../docs/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, word := range regexp.MustCompile(`[\w-]+`).FindAllString(string(page), -1) {
		known[word] = true
	}
	for _, from := range []struct {
		files, pattern string
		least          int
	}{
		{"../allocation/words.go", `Why\{Rule\w+, "(\w+)"`, 20},
		{"../../api/v1alpha1/conditions.go", `Event\w+ += "(\w+)"`, 15},
		{"../controller/*.go", `(?:restart\(|Reason: +)"(\w+)"`, 4},
		{"../rendezvous/seam.go", `Reason\w+ +Reason = "(\w+)"`, 10},
		{"../*/*.go", `"(concertina_\w+)"`, 10},
		{"../rendezvous/server/*.go", `"(concertina_\w+)"`, 12},
		{"../rendezvous/stages.go", `Stage\w+ +Stage = "(\w+)"`, 9},
		{"../rendezvous/stages.go", `Loss\w+ +LossCause = "(\w+)"`, 8},
		{"../rendezvous/server/episode.go", `outcome\w+ +outcome = "([\w-]+)"`, 5},
	} {
		files, err := filepath.Glob(from.files)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range regexp.MustCompile(from.pattern).FindAllStringSubmatch(string(text), -1) {
				if found++; !known[match[1]] {
					t.Errorf("docs/reasons.md does not have %s, of %s", match[1], file)
				}
			}
		}
		if found < from.least {
			t.Errorf("%s has %d words only: are they made elsewhere?", from.files, found)
		}
	}
}

// A metric that docs/reasons.md lists is made by the operator.
func TestTheReferenceHasNoOtherMetrics(t *testing.T) {
	page, err := os.ReadFile("../../docs/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, pattern := range []string{"../*/*.go", "../rendezvous/server/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			code.Write(text)
		}
	}
	listed := regexp.MustCompile("`(concertina_\\w+)`").FindAllStringSubmatch(string(page), -1)
	for _, match := range listed {
		if !strings.Contains(code.String(), `"`+match[1]+`"`) {
			t.Errorf("docs/reasons.md lists %s, which nobody makes", match[1])
		}
	}
	if len(listed) < 25 {
		t.Errorf("docs/reasons.md lists %d metrics only", len(listed))
	}
}
