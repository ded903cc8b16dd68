// Package archive makes container images from files, without a container engine: layers
// whose bytes depend on their content alone, and docker-archive tars around them.
package archive

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Epoch is the modification time of every file in a layer: with real times the same content
// would make a new digest each day, and every node would unpack it again.
var Epoch = time.Unix(946684800, 0).UTC()

// File is one file of a layer that is put together by hand. Its owner is root and everyone
// may read it, because a pod may run under any user id.
type File struct {
	// Path inside the image, absolute. Missing parent directories are created.
	Path string
	// Source is the file on this machine.
	Source string
	// Executable gives mode 0755 instead of 0644.
	Executable bool
}

// Layer is an uncompressed image layer. It stays uncompressed because it is imported on the
// machine that made it: compressing would only cost time on both sides.
type Layer struct {
	digest v1.Hash
	size   int64
	open   func() (io.ReadCloser, error)
}

var _ v1.Layer = Layer{}

func (l Layer) Digest() (v1.Hash, error)             { return l.digest, nil }
func (l Layer) DiffID() (v1.Hash, error)             { return l.digest, nil }
func (l Layer) Size() (int64, error)                 { return l.size, nil }
func (l Layer) Compressed() (io.ReadCloser, error)   { return l.open() }
func (l Layer) Uncompressed() (io.ReadCloser, error) { return l.open() }
func (l Layer) MediaType() (types.MediaType, error)  { return types.DockerUncompressedLayer, nil }

// FromFiles makes a layer of single files; it is held in memory. A source that is missing
// or no regular file is an error.
func FromFiles(files []File) (Layer, error) {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	sorted := append([]File(nil), files...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Path < sorted[j].Path })
	made := map[string]bool{"/": true}
	for _, f := range sorted {
		if err := writeParents(tw, f.Path, made); err != nil {
			return Layer{}, err
		}
		if err := writeFile(tw, f); err != nil {
			return Layer{}, fmt.Errorf("add %s to the layer: %w", f.Path, err)
		}
	}
	if err := tw.Close(); err != nil {
		return Layer{}, err
	}
	content := buf.Bytes()
	return Layer{
		digest: v1.Hash{Algorithm: "sha256", Hex: hexSum(content)},
		size:   int64(len(content)),
		open:   func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
	}, nil
}

func writeParents(tw *tar.Writer, name string, made map[string]bool) error {
	dir := path.Dir(name)
	if made[dir] {
		return nil
	}
	if err := writeParents(tw, dir, made); err != nil {
		return err
	}
	made[dir] = true
	return tw.WriteHeader(&tar.Header{
		Typeflag: tar.TypeDir, Name: strings.TrimPrefix(dir, "/") + "/", Mode: 0o755, ModTime: Epoch,
	})
}

func writeFile(tw *tar.Writer, f File) error {
	src, err := os.Open(f.Source)
	if err != nil {
		return err
	}
	defer src.Close()
	info, err := src.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", f.Source)
	}
	mode := int64(0o644)
	if f.Executable {
		mode = 0o755
	}
	header := &tar.Header{
		Typeflag: tar.TypeReg, Name: strings.TrimPrefix(f.Path, "/"), Mode: mode, Size: info.Size(), ModTime: Epoch,
	}
	if err := tw.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(tw, src)
	return err
}

// note is what is remembered beside a stored layer, so that a gigabyte is not hashed again
// to learn its digest.
type note struct {
	Digest v1.Hash `json:"digest"`
	Size   int64   `json:"size"`
	// Source identifies what the layer was made from.
	Source string `json:"source"`
}

// FromTree returns the layer that holds the directory tree root, stored as file. The stored
// one is used again while source, an identity of the tree's content, is the same.
func FromTree(file, root, source string) (Layer, error) {
	if l, ok := Stored(file, source); ok {
		return l, nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return Layer{}, err
	}
	partial := file + ".partial"
	defer os.Remove(partial)
	n := note{Source: source}
	var err error
	if n.Digest, n.Size, err = writeTreeFile(partial, root); err != nil {
		return Layer{}, fmt.Errorf("store %s as a layer: %w", root, err)
	}
	text, err := json.Marshal(n)
	if err != nil {
		return Layer{}, err
	}
	// The note goes first: a note without its layer is noticed by the size, a new layer
	// under an old note would be taken for something else.
	if err := os.WriteFile(file+".json", text, 0o644); err != nil {
		return Layer{}, err
	}
	if err := os.Rename(partial, file); err != nil {
		return Layer{}, err
	}
	return fileLayer(file, n), nil
}

// Stored returns the layer that FromTree has stored as file, and false when there is none that was made of this source.
func Stored(file, source string) (Layer, bool) {
	text, err := os.ReadFile(file + ".json")
	if err != nil {
		return Layer{}, false
	}
	var n note
	if json.Unmarshal(text, &n) != nil || n.Source != source {
		return Layer{}, false
	}
	info, err := os.Stat(file)
	if err != nil || info.Size() != n.Size {
		return Layer{}, false
	}
	return fileLayer(file, n), true
}

func fileLayer(file string, n note) Layer {
	return Layer{
		digest: n.Digest,
		size:   n.Size,
		open:   func() (io.ReadCloser, error) { return os.Open(file) },
	}
}

func writeTreeFile(file, root string) (v1.Hash, int64, error) {
	out, err := os.Create(file)
	if err != nil {
		return v1.Hash{}, 0, err
	}
	defer out.Close()
	sum := sha256.New()
	if err := WriteTree(io.MultiWriter(out, sum), root); err != nil {
		return v1.Hash{}, 0, err
	}
	info, err := out.Stat()
	if err != nil {
		return v1.Hash{}, 0, err
	}
	hash := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}
	return hash, info.Size(), out.Close()
}

// WriteTree writes the directory tree root as a tar: names sorted, times fixed, owners and
// modes kept, hard links kept, devices and sockets left out.
func WriteTree(w io.Writer, root string) error {
	tw := tar.NewWriter(w)
	links := map[uint64]string{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil || name == "." {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		return writeEntry(tw, file, name, info, links)
	})
	return errors.Join(err, tw.Close())
}

func writeEntry(tw *tar.Writer, file, name string, info fs.FileInfo, links map[uint64]string) error {
	header := &tar.Header{Name: name, ModTime: Epoch, Mode: unixMode(info.Mode())}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: owner unknown on this platform", file)
	}
	header.Uid, header.Gid = int(stat.Uid), int(stat.Gid)
	switch {
	case info.IsDir():
		header.Typeflag, header.Name = tar.TypeDir, name+"/"
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(file)
		if err != nil {
			return err
		}
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, target, 0o777
	case !info.Mode().IsRegular():
		return nil
	case links[stat.Ino] != "":
		header.Typeflag, header.Linkname = tar.TypeLink, links[stat.Ino]
	default:
		header.Typeflag, header.Size = tar.TypeReg, info.Size()
		if stat.Nlink > 1 {
			links[stat.Ino] = name
		}
	}
	if err := tw.WriteHeader(header); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if header.Typeflag != tar.TypeReg {
		return nil
	}
	src, err := os.Open(file)
	if err != nil {
		return err
	}
	defer src.Close()
	_, err = io.Copy(tw, src)
	return err
}

func unixMode(m fs.FileMode) int64 {
	mode := int64(m.Perm())
	for bit, value := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&bit != 0 {
			mode |= value
		}
	}
	return mode
}

func hexSum(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
