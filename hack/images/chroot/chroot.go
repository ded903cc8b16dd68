// Package chroot runs a command inside an unpacked image root the way a pod would see it:
// its own mounts, no name for its user, and a read-only root file system. It needs root and
// leaves no mount behind, because they live in a mount namespace that ends with the command.
package chroot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// EnterArg is the first argument with which Command starts this very program again; its
// main function must then call Enter.
const EnterArg = "chroot-enter"

// Bind makes a file or directory of this machine visible inside the root, read-only.
type Bind struct {
	Source string
	// Target is the path inside; it must exist in the root. A folder over /tmp takes the place of the fresh one.
	Target string
	// Writable has the command write there, as far as its user may.
	Writable bool
}

// Setup says how the command sees the machine.
type Setup struct {
	Root  string
	Binds []Bind
	// UID and GID of the command. No entry in the root's /etc/passwd is needed.
	UID, GID int
	// Writable leaves the root writable. /tmp is a fresh memory file system otherwise.
	Writable bool
	Dir      string
	Env      []string
	Args     []string
}

// Command returns a command that runs setup.Args inside setup.Root. Its standard streams
// are the caller's to set.
func Command(ctx context.Context, setup Setup) (*exec.Cmd, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("running inside an image root needs root: run this as root")
	}
	if len(setup.Args) == 0 {
		return nil, errors.New("no command to run inside the image root")
	}
	text, err := json.Marshal(setup)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", EnterArg, string(text))
	cmd.Env = setup.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	// An interrupted command gets the chance to end by itself; its children die with it.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd, nil
}

// Enter builds what setup describes in the process's own mount namespace and turns into the
// command. It returns only on failure.
func Enter(setupText string) error {
	var setup Setup
	if err := json.Unmarshal([]byte(setupText), &setup); err != nil {
		return fmt.Errorf("read the setup: %w", err)
	}
	if err := mountAll(setup); err != nil {
		return err
	}
	if err := unix.Chroot(setup.Root); err != nil {
		return fmt.Errorf("chroot into %s: %w", setup.Root, err)
	}
	dir := setup.Dir
	if dir == "" {
		dir = "/"
	}
	if err := os.Chdir(dir); err != nil {
		return fmt.Errorf("enter the working directory: %w", err)
	}
	if err := dropTo(setup.UID, setup.GID); err != nil {
		return err
	}
	program, err := exec.LookPath(setup.Args[0])
	if err != nil {
		return fmt.Errorf("inside %s: %w", setup.Root, err)
	}
	return fmt.Errorf("run %s: %w", program, syscall.Exec(program, setup.Args, os.Environ()))
}

func mountAll(setup Setup) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount(setup.Root, setup.Root, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", setup.Root, err)
	}
	inside := func(p string) string { return filepath.Join(setup.Root, p) }
	if err := unix.Mount("/dev", inside("/dev"), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount /dev: %w", err)
	}
	if !setup.Writable {
		if err := unix.Mount("tmpfs", inside("/tmp"), "tmpfs", 0, "mode=1777"); err != nil {
			return fmt.Errorf("mount /tmp: %w", err)
		}
	}
	for _, b := range setup.Binds {
		if err := bind(b, inside(b.Target)); err != nil {
			return err
		}
	}
	if err := unix.Mount("proc", inside("/proc"), "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if setup.Writable {
		return nil
	}
	if err := unix.Mount("", setup.Root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", setup.Root, err)
	}
	return nil
}

// bind leaves out what is mounted below the source: holding it would keep its owner from
// unmounting it.
func bind(b Bind, target string) error {
	if err := unix.Mount(b.Source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", b.Source, target, err)
	}
	if b.Writable {
		return nil
	}
	if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", target, err)
	}
	return nil
}

func dropTo(uid, gid int) error {
	if uid == 0 && gid == 0 {
		return nil
	}
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("leave all groups: %w", err)
	}
	if err := syscall.Setgid(gid); err != nil {
		return fmt.Errorf("become group %d: %w", gid, err)
	}
	if err := syscall.Setuid(uid); err != nil {
		return fmt.Errorf("become user %d: %w", uid, err)
	}
	return nil
}

// UnmountBelow unmounts everything at or below dir that an interrupted run left there, so
// that the directory can be removed without reaching into the machine's own /proc or /dev.
func UnmountBelow(dir string) error {
	points, err := mountPointsBelow("/proc/self/mountinfo", dir)
	if err != nil {
		return err
	}
	for i := len(points) - 1; i >= 0; i-- {
		if err := unix.Unmount(points[i], unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", points[i], err)
		}
	}
	return nil
}
