package image

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func file(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// program writes an image with the given content and returns its archive.
func program(t *testing.T, name, content string) Archive {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := WriteProgram(path, name, file(t, []byte(content)), "/run"); err != nil {
		t.Fatal(err)
	}
	a, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestWriteThenRead(t *testing.T) {
	a := program(t, "localhost/tool:1", "one")
	if len(a.Images) != 1 || !strings.HasPrefix(a.Images[0].ID, "sha256:") {
		t.Fatalf("read %+v, want one image with a digest", a)
	}
	if diff := cmp.Diff([]string{"localhost/tool:1"}, a.Images[0].Tags); diff != "" {
		t.Errorf("tags (-want +got):\n%s", diff)
	}
	if again := program(t, "localhost/tool:1", "one"); again.Images[0].ID != a.Images[0].ID {
		t.Error("the same program gives another digest")
	}
	if other := program(t, "localhost/tool:1", "two"); other.Images[0].ID == a.Images[0].ID {
		t.Error("another program gives the same digest")
	}
}

func TestReadRefuses(t *testing.T) {
	manifest := func(entry manifestEntry) []byte {
		raw, err := json.Marshal([]manifestEntry{entry})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	good := []byte(`{"os":"linux","architecture":"amd64"}`)
	named := manifest(manifestEntry{Config: "c.json", RepoTags: []string{"x:1"}})
	tests := map[string]struct {
		members []member
		says    string
	}{
		"no manifest":           {[]member{{"c.json", 0, good}}, "no manifest.json"},
		"malformed manifest":    {[]member{{"manifest.json", 0, []byte("{")}}, "malformed"},
		"empty manifest":        {[]member{{"manifest.json", 0, []byte("[]")}}, "lists no image"},
		"no name":               {[]member{{"manifest.json", 0, manifest(manifestEntry{Config: "c.json"})}, {"c.json", 0, good}}, "has no name"},
		"no configuration":      {[]member{{"manifest.json", 0, named}}, "configuration"},
		"no platform":           {[]member{{"manifest.json", 0, named}, {"c.json", 0, []byte("{}")}}, "os and architecture"},
		"config is not JSON":    {[]member{{"manifest.json", 0, named}, {"c.json", 0, []byte("x")}}, "malformed"},
		"a description too big": {[]member{{"manifest.json", 0, make([]byte, maxDescription+1)}}, "bytes long"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			raw, err := archive(tc.members...)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Read(file(t, raw)); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Read = %v, want an error that says %q", err, tc.says)
			}
		})
	}
	if _, err := Read(file(t, []byte("plain text, long enough to be looked at"))); err == nil || !strings.Contains(err.Error(), "docker-archive") {
		t.Errorf("Read of a text = %v, want an error that names the format", err)
	}
}

func TestStoreOutlivesTheLoadedFile(t *testing.T) {
	s := Store{Dir: filepath.Join(t.TempDir(), "images")}
	a := program(t, "localhost/a:1", "one")
	stored, err := s.Add(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(a.Path); err != nil {
		t.Fatal(err)
	}
	again, err := Read(stored.Path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a.Images, again.Images); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
}

func TestStoreForgetsWhatHasLostItsName(t *testing.T) {
	s := Store{Dir: filepath.Join(t.TempDir(), "images")}
	for _, a := range []Archive{
		program(t, "localhost/a:1", "old"), program(t, "localhost/b:1", "b"),
		program(t, "localhost/a:1", "new"), program(t, "localhost/a:1", "new"),
	} {
		if _, err := s.Add(a); err != nil {
			t.Fatal(err)
		}
	}
	list, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	var tags []string
	for _, a := range list {
		tags = append(tags, a.Images[0].Tags...)
	}
	if diff := cmp.Diff([]string{"localhost/b:1", "localhost/a:1"}, tags); diff != "" {
		t.Errorf("remembered (-want +got):\n%s", diff)
	}
	if list[1].Images[0].ID != program(t, "localhost/a:1", "new").Images[0].ID {
		t.Error("the older image of the name is remembered")
	}
	if files, _ := filepath.Glob(filepath.Join(s.Dir, "*.tar")); len(files) != 2 {
		t.Errorf("the store holds %v, want two archives", files)
	}
}

func TestAnImageThatDoesNotFit(t *testing.T) {
	if err := fits("/nodes", 3<<20, 3<<20); err != nil {
		t.Errorf("just enough: %v", err)
	}
	err := fits("/nodes", 3<<20, 3<<20-1)
	if err == nil {
		t.Fatal("a byte is missing, and nobody says so")
	}
	for _, word := range []string{"/nodes", "2 MiB of room", "needs 3 MiB", "make room"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
	a := program(t, "localhost/tool:1", "one")
	if err := a.Fits(t.TempDir()); err != nil {
		t.Errorf("a small image: %v", err)
	}
	a.Path += ".gone"
	if err := a.Fits(t.TempDir()); err == nil {
		t.Error("an archive that is gone fits")
	}
}
