package debianroot

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestMirror(t *testing.T) {
	const deb822 = "# our mirror\nTypes: deb deb-src\nURIs: http://mirror.example/debian\nSuites: bookworm\n bookworm-updates\nComponents: main\n"
	tests := []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"one line", map[string]string{"sources.list": "deb http://a.example/debian bookworm main contrib\n"}, "http://a.example/debian"},
		{"options and comments", map[string]string{
			"sources.list": "# deb http://no.example bookworm main\ndeb [arch=amd64 signed-by=/k.gpg] http://a.example/debian bookworm main # ours\n",
		}, "http://a.example/debian"},
		{"stanzas", map[string]string{"sources.list.d/debian.sources": deb822}, "http://mirror.example/debian"},
		{"a third party's source comes first", map[string]string{
			"sources.list.d/another.list":   "deb http://other.example/apt cloud-bookworm main\n",
			"sources.list.d/debian.sources": deb822,
		}, "http://mirror.example/debian"},
		{"security archive is another suite", map[string]string{
			"sources.list.d/debian.sources": strings.ReplaceAll(deb822, "bookworm\n", "bookworm-security\n") + "\n" + deb822,
		}, "http://mirror.example/debian"},
		{"switched off", map[string]string{
			"sources.list.d/debian.sources": "Enabled: no\n" + deb822 + "\n" + strings.ReplaceAll(deb822, "mirror", "second"),
		}, "http://second.example/debian"},
		{"source packages only", map[string]string{"sources.list": "deb-src http://a.example/debian bookworm main\n"}, ""},
		{"none", nil, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range test.files {
				write(t, dir, name, text)
			}
			got, err := Mirror(dir, "bookworm")
			if got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
			if err != nil && !strings.Contains(err.Error(), "CONCERTINA_DEBIAN_MIRROR") {
				t.Errorf("the error does not say what to do: %v", err)
			}
		})
	}
}

func TestCodename(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "os-release", "NAME=\"Debian\"\nVERSION_CODENAME=\"bookworm\"\n")
	if got, err := Codename(filepath.Join(dir, "os-release")); got != "bookworm" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestPatch(t *testing.T) {
	p := []patch{{file: "a.py", old: "open()\n", new: "open(x)\n"}}
	tests := []struct{ name, before, after, wrong string }{
		{"once", "import a\nopen()\n", "import a\nopen(x)\n", ""},
		{"not there", "import a\n", "", "found it 0 times"},
		{"twice", "open()\nopen()\n", "", "found it 2 times"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, "a.py", test.before)
			err := apply(dir, p)
			if test.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), test.wrong) || !strings.Contains(err.Error(), "a.py") {
					t.Errorf("got %v, want %q and the file's name", err, test.wrong)
				}
				return
			}
			text, readErr := os.ReadFile(filepath.Join(dir, "a.py"))
			if err != nil || readErr != nil || string(text) != test.after {
				t.Errorf("got %q, %v, %v", text, err, readErr)
			}
		})
	}
	if err := apply(t.TempDir(), p); err == nil {
		t.Error("a missing file was not noticed")
	}
}

func TestTrim(t *testing.T) {
	dir := t.TempDir()
	const site = "usr/lib/python3/dist-packages/"
	keep := []string{
		"usr/share/doc/torch/copyright", "usr/lib/x86/libtorch.so", site + "numpy/_core/tests/_natype.py",
		site + "torch/bin/torch_shm_manager", site + "torch/testing/a.py", "etc/passwd",
	}
	drop := []string{
		"usr/share/doc/torch/README", "usr/share/man/man1/x.1", "usr/lib/x86/libx.a", "var/lib/apt/lists/x",
		site + "scipy/stats/tests/test_x.py", site + "torch/bin/test_api", site + "torch/bin/TCPStoreTest",
		"usr/lib/x86/libLLVM-17.so.1", "usr/lib/x86/ucx/libuct_rocm.so.0", "etc/resolv.conf", "tmp/x",
	}
	for _, name := range append(append([]string{}, keep...), drop...) {
		write(t, dir, name, "x")
	}
	if err := trim(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range keep {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Errorf("%s is gone", name)
		}
	}
	for _, name := range drop {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
}

func TestProgressSpeaksSeldom(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(0, 0)
	p := newProgress(&out, io.Discard, func() time.Time { return now })
	for range 20 {
		now = now.Add(time.Second)
		// In two pieces, as a pipe may deliver a line.
		_, _ = p.Write([]byte("I: Unpack"))
		_, _ = p.Write([]byte("ing libc6...\nW: something else\n"))
	}
	want := "" +
		"  pytorch-root    5s  unpacking packages: 5 so far\n" +
		"  pytorch-root   10s  unpacking packages: 10 so far\n" +
		"  pytorch-root   15s  unpacking packages: 15 so far\n" +
		"  pytorch-root   20s  unpacking packages: 20 so far\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestFindWantsTheRecipeAndTheFiles(t *testing.T) {
	cache := t.TempDir()
	found := func() bool {
		_, ok := Find(cache)
		return ok
	}
	if found() {
		t.Error("found in an empty cache")
	}
	write(t, cache, "pytorch-root.stamp", stamp())
	if found() {
		t.Error("a stamp without files was taken for a root")
	}
	write(t, cache, "pytorch-root/usr/lib/python3.13/os.py", "")
	if root, ok := Find(cache); !ok || root.Python != "python3.13" {
		t.Errorf("not found: %+v", root)
	}
	write(t, cache, "pytorch-root.stamp", "another recipe")
	if found() {
		t.Error("a root of another recipe was found")
	}
}

func TestThisMachinesPythonIsNotThatOfTheRoot(t *testing.T) {
	got := foreign([]string{"PATH=/bin", "PYTHONPYCACHEPREFIX=/here/cache", "PYTHONPATH=/here", "http_proxy=http://proxy"})
	if diff := cmp.Diff([]string{"PATH=/bin", "http_proxy=http://proxy"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
