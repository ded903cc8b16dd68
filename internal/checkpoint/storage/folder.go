package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
)

// folder is a bucket on a mounted volume. Objects are files, which are synchronised with what is below, as are
// the folders that name them: libraries for this leave that out.
type folder struct{ root *os.Root }

// nextTemp numbers the files that are being written.
var nextTemp atomic.Uint64

// tempPrefix begins the names of files that are being written. They are no objects.
const tempPrefix = ".writing-"

// openFolder opens the folder that a URL names, and makes it if it is not there. The volume itself must be.
func openFolder(address *url.URL) (bucket, error) {
	if address.Host != "" || address.RawQuery != "" || !filepath.IsAbs(address.Path) {
		return nil, fmt.Errorf("%w: %q: a folder is written file:///path/of/the/folder", ErrRefused, address.Redacted())
	}
	if err := os.MkdirAll(address.Path, 0o750); err != nil {
		return nil, fmt.Errorf("%w: make the folder of checkpoints: %w", ErrRefused, err)
	}
	root, err := os.OpenRoot(address.Path)
	if err != nil {
		return nil, fmt.Errorf("%w: open the folder of checkpoints: %w", ErrRefused, err)
	}
	return folder{root}, nil
}

func (f folder) create(ctx context.Context, key string, data []byte) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := f.folders(path.Dir(key)); err != nil {
		return f.named(err)
	}
	defer func() {
		if errors.Is(err, ErrNotFound) {
			// The folder was removed meanwhile, being empty: it can be made again.
			err = fmt.Errorf("make %s: its folder was removed", key)
		}
	}()
	temp := path.Join(path.Dir(key), tempPrefix+nameOf([]byte(key))[:16]+fmt.Sprintf("-%d-%d", os.Getpid(), nextTemp.Add(1)))
	defer func() { _ = f.root.Remove(temp) }()
	if err := f.write(temp, data); err != nil {
		return f.named(err)
	}
	// A link fails when the name is taken; to look first and then rename would not be one act.
	if err := f.root.Link(temp, key); err != nil {
		return f.named(err)
	}
	return f.named(f.sync(path.Dir(key)))
}

// folders makes a folder and those above it, and synchronises where they are named.
func (f folder) folders(name string) error {
	if _, err := f.root.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := f.folders(path.Dir(name)); err != nil {
		return err
	}
	if err := f.root.Mkdir(name, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return f.sync(path.Dir(name))
}

func (f folder) write(name string, data []byte) error {
	file, err := f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Sync(), file.Close())
}

// sync makes the names in a folder durable.
func (f folder) sync(name string) error {
	dir, err := f.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (f folder) open(_ context.Context, key string) (io.ReadCloser, error) {
	file, err := f.root.Open(key)
	if err != nil {
		return nil, f.named(err)
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%w: %s is no file", ErrRefused, key), err, file.Close())
	}
	return file, nil
}

func (f folder) list(ctx context.Context, prefix string, yield func(object) error) error {
	top := strings.TrimSuffix(prefix, "/")
	if top == "" {
		top = "."
	}
	err := fs.WalkDir(f.root.FS(), top, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // it went while this looked
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case entry.IsDir() || strings.HasPrefix(entry.Name(), tempPrefix):
			return nil
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return yield(object{name, info.Size(), info.ModTime()})
	})
	return f.named(err)
}

func (f folder) remove(_ context.Context, key string) error {
	if err := f.root.Remove(key); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f.named(err)
	}
	// What is half written there is of somebody who was killed, or who will fail: that place is not wanted any more.
	f.clear(path.Dir(key))
	return nil
}

// clear removes folders that have become empty, from below; files that are being written do not count when
// nothing else is there.
func (f folder) clear(name string) {
	for ; name != "."; name = path.Dir(name) {
		entries, err := fs.ReadDir(f.root.FS(), name)
		if err != nil {
			return
		}
		for _, entry := range entries {
			if !strings.HasPrefix(entry.Name(), tempPrefix) {
				return
			}
		}
		for _, entry := range entries {
			_ = f.root.Remove(path.Join(name, entry.Name()))
		}
		if f.root.Remove(name) != nil {
			return
		}
	}
}

func (f folder) close() error { return f.root.Close() }

// named marks errors by what they mean here.
func (f folder) named(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w: %w", ErrExists, err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	default:
		return err
	}
}
