package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// HTML templates call methods by their names, so that the linker keeps every method of every type: the operator would be
// a third larger. Only gRPC's page of traces needs them, and a tag leaves that out.
func TestTheOperatorHasNoHTMLTemplates(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-tags", "grpcnotrace", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	if deps := strings.Fields(string(out)); slices.Contains(deps, "html/template") {
		t.Error("a package that the operator needs imports html/template: see with go list -deps which")
	}
	for _, builds := range []string{"Makefile", "hack/images/catalog.go", "hack/bench/scale/scale.go"} {
		text, err := os.ReadFile(filepath.Join(root, builds))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "grpcnotrace") {
			t.Errorf("%s builds the operator with them", builds)
		}
	}
}
