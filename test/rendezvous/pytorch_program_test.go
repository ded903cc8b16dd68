package rendezvous

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/concertina-dev/concertina/hack/images/chroot"
	"github.com/concertina-dev/concertina/hack/images/debianroot"
)

// pytorchVariable makes a process of this test's binary a program in the root of the PyTorch image. Its value says which.
const pytorchVariable = "TEST_PYTORCH"

// inPyTorch is a command that becomes a program in the root of the PyTorch image, and the variables that it wants. The program sees the
// folder of temporary files where it is, the checkout as /src, and has the Python of that.
func inPyTorch(t *testing.T, program ...string) (command, environment []string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("entering the root of the PyTorch image needs root: run this as root")
	}
	checkout, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	cache := os.Getenv("CONCERTINA_CACHE")
	if cache == "" {
		cache = filepath.Join(checkout, ".cache")
	}
	files, found := debianroot.Find(cache)
	if !found {
		t.Fatal("the files of the PyTorch image are missing (built by: go run ./hack/images build pytorch-digits)")
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	setup, err := json.Marshal(chroot.Setup{
		Root: files.Dir, Dir: "/src", Args: program,
		Binds: []chroot.Bind{
			{Source: checkout, Target: "/src"},
			{Source: os.TempDir(), Target: os.TempDir(), Writable: true},
			{Source: "/etc/hosts", Target: "/etc/hosts"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return []string{binary}, []string{
		pytorchVariable + "=" + string(setup), "PYTHONPATH=/src/python", "PYTHONDONTWRITEBYTECODE=1", "PYTHONWARNINGS=ignore",
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp", "LANG=C.UTF-8", "USE_LIBUV=0", "OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=lo",
	}
}

// enterPyTorch becomes that program. It returns only on failure.
func enterPyTorch(setup string) int {
	// What this thread sees of the file system is what the program sees, and it dies as a node that ends takes all along.
	runtime.LockOSThread()
	_, _, _ = syscall.Syscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0)
	err := unix.Unshare(unix.CLONE_NEWNS)
	if err == nil {
		err = chroot.Enter(setup)
	}
	fmt.Println(err)
	return 126
}
