// Package install puts the agent's binary where another container finds it.
package install

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// To copies the running binary to a path, executable for everybody. The file appears whole or not
// at all; one that is there is replaced. Missing directories are made.
func To(path string) error {
	if err := copySelf(path); err != nil {
		return fmt.Errorf("install the agent at %s: %w", path, err)
	}
	return nil
}

func copySelf(path string) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer func() { _ = self.Close() }()
	if err := makeDirectory(filepath.Dir(path)); err != nil {
		return err
	}
	partial, err := os.CreateTemp(filepath.Dir(path), ".agent-*")
	if err != nil {
		return err
	}
	if err := fill(partial, self); err != nil {
		return errors.Join(err, os.Remove(partial.Name()))
	}
	if err := os.Rename(partial.Name(), path); err != nil {
		return errors.Join(err, os.Remove(partial.Name()))
	}
	return nil
}

// makeDirectory makes a directory that everybody can look into, whatever the umask of the image; one
// that is there is left as it is.
func makeDirectory(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	return os.Chmod(path, 0o755)
}

func fill(to *os.File, from io.Reader) error {
	_, err := io.Copy(to, from)
	if err == nil {
		// The umask has no say in it: the training container may run as anybody.
		err = to.Chmod(0o755)
	}
	return errors.Join(err, to.Close())
}
