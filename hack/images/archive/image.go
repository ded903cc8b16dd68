package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Spec describes an image.
type Spec struct {
	// Ref is the name and tag a pod uses, for example "localhost/go-digits:dev".
	Ref string
	// Layers, lowest first.
	Layers []Layer
	// Entrypoint, Env ("NAME=value"), User ("uid:gid") and WorkingDir as in the image
	// configuration.
	Entrypoint []string
	Env        []string
	User       string
	WorkingDir string
}

// Written tells what Write did.
type Written struct {
	// ID is the image's id: the digest of its configuration, which names every layer.
	ID string
	// Size of the tar in bytes.
	Size int64
	// Changed is false when the file held this very image already.
	Changed bool
}

// Write stores the image as a docker-archive tar in file. A file that holds the same image
// already is not touched, so that its time tells when the content last changed. Nothing is written
// in place: the files of a copy may be hard links to those of the original.
func Write(file string, spec Spec) (Written, error) {
	tag, err := name.NewTag(spec.Ref)
	if err != nil {
		return Written{}, fmt.Errorf("image name %q: %w", spec.Ref, err)
	}
	image, err := assemble(spec)
	if err != nil {
		return Written{}, fmt.Errorf("assemble %s: %w", spec.Ref, err)
	}
	id, err := image.ConfigName()
	if err != nil {
		return Written{}, err
	}
	stamp := file + ".stamp"
	if size, ok := upToDate(file, stamp, id.String()); ok {
		return Written{ID: id.String(), Size: size}, nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return Written{}, err
	}
	// Until the new tar is complete no stamp says what the file holds.
	if err := os.Remove(stamp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Written{}, err
	}
	var size int64
	err = replace(file, func(partial string) error {
		if err := tarball.WriteToFile(partial, tag, image); err != nil {
			return err
		}
		info, err := os.Stat(partial)
		if err == nil {
			size = info.Size()
		}
		return err
	})
	if err != nil {
		return Written{}, fmt.Errorf("write %s: %w", file, err)
	}
	text := fmt.Sprintf("%s %d\n", id, size)
	if err := replace(stamp, func(partial string) error { return os.WriteFile(partial, []byte(text), 0o644) }); err != nil {
		return Written{}, fmt.Errorf("write %s: %w", stamp, err)
	}
	return Written{ID: id.String(), Size: size, Changed: true}, nil
}

// replace puts a new file in the place of one, once it is written as a whole.
func replace(file string, write func(partial string) error) error {
	partial := file + ".partial"
	if err := os.Remove(partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // one that was left behind may have another link
	}
	defer os.Remove(partial)
	if err := write(partial); err != nil {
		return err
	}
	return os.Rename(partial, file)
}

// assemble names os and architecture: an importer drops an image without them, silently.
func assemble(spec Spec) (v1.Image, error) {
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS:           "linux",
		Architecture: runtime.GOARCH,
		Created:      v1.Time{Time: Epoch},
		RootFS:       v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: spec.Entrypoint,
			Env:        spec.Env,
			User:       spec.User,
			WorkingDir: spec.WorkingDir,
		},
	})
	if err != nil {
		return nil, err
	}
	for _, layer := range spec.Layers {
		image, err = mutate.Append(image, mutate.Addendum{
			Layer:   layer,
			History: v1.History{Created: v1.Time{Time: Epoch}, CreatedBy: "hack/images"},
		})
		if err != nil {
			return nil, err
		}
	}
	return image, nil
}

func upToDate(file, stamp, id string) (int64, bool) {
	text, err := os.ReadFile(stamp)
	if err != nil {
		return 0, false
	}
	info, err := os.Stat(file)
	if err != nil {
		return 0, false
	}
	return info.Size(), strings.TrimSpace(string(text)) == fmt.Sprintf("%s %d", id, info.Size())
}
