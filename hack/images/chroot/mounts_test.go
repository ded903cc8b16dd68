package chroot

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMountPointsBelow(t *testing.T) {
	const mountinfo = `22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw
40 22 0:5 / /cache/root/proc rw - proc proc rw
41 22 0:6 / /cache/root-other/dev rw - tmpfs tmpfs rw
42 22 0:6 / /cache/root/a\040b rw - tmpfs tmpfs rw
43 22 0:6 / /cache/root rw - tmpfs tmpfs rw
`
	file := filepath.Join(t.TempDir(), "mountinfo")
	if err := os.WriteFile(file, []byte(mountinfo), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := mountPointsBelow(file, "/cache/root")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/cache/root/proc", "/cache/root/a b", "/cache/root"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestCommandNeedsArguments(t *testing.T) {
	if _, err := Command(context.Background(), Setup{Root: t.TempDir()}); err == nil {
		t.Error("nothing to run, and no error")
	}
}
