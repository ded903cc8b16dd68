package archive_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/concertina-dev/concertina/hack/images/archive"
)

// tree makes a small root with every kind of file that a layer must keep.
func tree(t *testing.T, modified time.Time) string {
	t.Helper()
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "usr/bin/tool"), []byte("tool"), 0o755))
	must(t, os.Link(filepath.Join(root, "usr/bin/tool"), filepath.Join(root, "usr/bin/zz-same")))
	must(t, os.Symlink("usr/bin", filepath.Join(root, "bin")))
	must(t, os.Mkdir(filepath.Join(root, "tmp"), 0o777))
	must(t, os.Chmod(filepath.Join(root, "tmp"), 0o777|fs.ModeSticky))
	must(t, os.Chtimes(filepath.Join(root, "usr/bin/tool"), modified, modified))
	return root
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func entries(t *testing.T, layer io.Reader) map[string]tar.Header {
	t.Helper()
	found := map[string]tar.Header{}
	for tr := tar.NewReader(layer); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		must(t, err)
		found[h.Name] = *h
	}
}

func TestTreeLayerKeepsLinksAndModes(t *testing.T) {
	var buf bytes.Buffer
	must(t, archive.WriteTree(&buf, tree(t, time.Now())))
	type kept struct {
		Type byte
		Mode int64
		Link string
	}
	got := map[string]kept{}
	for name, h := range entries(t, &buf) {
		if !h.ModTime.Equal(archive.Epoch) {
			t.Errorf("%s has its own time %v", name, h.ModTime)
		}
		got[name] = kept{h.Typeflag, h.Mode, h.Linkname}
	}
	want := map[string]kept{
		"bin":             {tar.TypeSymlink, 0o777, "usr/bin"},
		"tmp/":            {tar.TypeDir, 0o1777, ""},
		"usr/":            {tar.TypeDir, 0o755, ""},
		"usr/bin/":        {tar.TypeDir, 0o755, ""},
		"usr/bin/tool":    {tar.TypeReg, 0o755, ""},
		"usr/bin/zz-same": {tar.TypeLink, 0o755, "usr/bin/tool"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTreeLayerDependsOnContentAlone(t *testing.T) {
	var old, recent bytes.Buffer
	must(t, archive.WriteTree(&old, tree(t, time.Unix(1000, 0))))
	must(t, archive.WriteTree(&recent, tree(t, time.Now())))
	if !bytes.Equal(old.Bytes(), recent.Bytes()) {
		t.Error("the same files with other times make another layer")
	}
}

func TestStoredLayerIsUsedAgain(t *testing.T) {
	root, file := tree(t, time.Now()), filepath.Join(t.TempDir(), "base.tar")
	digest := func(source string) v1.Hash {
		layer, err := archive.FromTree(file, root, source)
		must(t, err)
		h, err := layer.Digest()
		must(t, err)
		return h
	}
	first := digest("recipe 1")
	must(t, os.WriteFile(filepath.Join(root, "new"), []byte("new"), 0o644))
	if again := digest("recipe 1"); again != first {
		t.Error("the stored layer was made again although its source is the same")
	}
	second := digest("recipe 2")
	if second == first {
		t.Error("another source still gives the old layer")
	}
	must(t, os.Truncate(file, 10))
	if again := digest("recipe 2"); again != second {
		t.Errorf("after a truncated file: got %s, want %s", again, second)
	}
	if info, err := os.Stat(file); err != nil || info.Size() <= 10 {
		t.Errorf("the truncated layer was not replaced: %v %v", info.Size(), err)
	}
}

func spec(t *testing.T, content string) archive.Spec {
	t.Helper()
	source := filepath.Join(t.TempDir(), "program")
	must(t, os.WriteFile(source, []byte(content), 0o600))
	layer, err := archive.FromFiles([]archive.File{
		{Path: "/opt/app/program", Source: source, Executable: true},
		{Path: "/opt/app/data", Source: source},
	})
	must(t, err)
	return archive.Spec{
		Ref: "localhost/program:dev", Layers: []archive.Layer{layer}, Entrypoint: []string{"/opt/app/program"},
		Env: []string{"A=b"}, User: "65532:65532", WorkingDir: "/opt",
	}
}

func TestWrittenImageIsComplete(t *testing.T) {
	file := filepath.Join(t.TempDir(), "images", "program.tar")
	written, err := archive.Write(file, spec(t, "one"))
	must(t, err)
	image, err := tarball.ImageFromPath(file, nil)
	must(t, err)
	must(t, validate.Image(image))
	config, err := image.ConfigFile()
	must(t, err)
	if config.OS != "linux" || config.Architecture != runtime.GOARCH {
		t.Errorf("platform %s/%s: importers drop an image without its own platform", config.OS, config.Architecture)
	}
	want := v1.Config{
		Entrypoint: []string{"/opt/app/program"}, Env: []string{"A=b"}, User: "65532:65532", WorkingDir: "/opt",
	}
	if diff := cmp.Diff(want, config.Config); diff != "" {
		t.Error(diff)
	}
	layers, err := image.Layers()
	must(t, err)
	content, err := layers[0].Uncompressed()
	must(t, err)
	defer content.Close()
	got := map[string]int64{}
	for name, h := range entries(t, content) {
		got[name] = h.Mode
	}
	wantModes := map[string]int64{"opt/": 0o755, "opt/app/": 0o755, "opt/app/data": 0o644, "opt/app/program": 0o755}
	if diff := cmp.Diff(wantModes, got); diff != "" {
		t.Error(diff)
	}
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(file) })
	must(t, err)
	if diff := cmp.Diff([]string{"localhost/program:dev"}, manifest[0].RepoTags); diff != "" {
		t.Error(diff)
	}
	if id, err := image.ConfigName(); err != nil || id.String() != written.ID {
		t.Errorf("id %s, the file holds %s (%v)", written.ID, id, err)
	}
}

func TestUnchangedImageIsNotWrittenAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "program.tar")
	changed := func(content string) bool {
		written, err := archive.Write(file, spec(t, content))
		must(t, err)
		return written.Changed
	}
	if !changed("one") {
		t.Error("the first image was not written")
	}
	if changed("one") {
		t.Error("the same image was written again")
	}
	if !changed("two") {
		t.Error("a changed program did not change the image")
	}
	must(t, os.Truncate(file, 5))
	if !changed("two") {
		t.Error("a truncated image was taken for a good one")
	}
}

// A copy whose files are hard links stays what it was, the tar with its stamp, whatever is written where it was taken from.
func TestACopyByHardLinksStaysAsItWas(t *testing.T) {
	root := t.TempDir()
	file, copied := filepath.Join(root, "program.tar"), filepath.Join(root, "copy.tar")
	write := func(to, content string) archive.Written {
		written, err := archive.Write(to, spec(t, content))
		must(t, err)
		return written
	}
	write(file, "one")
	for _, end := range []string{"", ".stamp"} {
		must(t, os.Link(file+end, copied+end))
	}
	must(t, os.Link(file, file+".partial")) // was left behind
	write(file, "two")
	if write(copied, "one").Changed {
		t.Error("the copy does not hold the same image any more")
	}
	if !write(copied, "two").Changed {
		t.Error("the copy is taken for another image")
	}
}

func TestBadInput(t *testing.T) {
	if _, err := archive.FromFiles([]archive.File{{Path: "/x", Source: filepath.Join(t.TempDir(), "none")}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing source: %v", err)
	}
	if _, err := archive.FromFiles([]archive.File{{Path: "/x", Source: t.TempDir()}}); err == nil {
		t.Error("a directory was taken for a file")
	}
	bad := spec(t, "one")
	bad.Ref = "Not A Name"
	if _, err := archive.Write(filepath.Join(t.TempDir(), "x.tar"), bad); err == nil {
		t.Error("a malformed name was accepted")
	}
}
