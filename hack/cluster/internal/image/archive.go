// Package image reads and writes docker-archive files, the one format in
// which images come to the local cluster, and remembers those that every node
// gets.
package image

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
)

// Image is one image of an archive.
type Image struct {
	// ID is the digest of the image's configuration, sha256:…
	ID string `json:"id"`
	// Tags are the names that it gets.
	Tags []string `json:"tags"`
}

// Archive is a docker-archive file.
type Archive struct {
	Path   string  `json:"path"`
	Images []Image `json:"images"`
}

// manifestEntry is one element of an archive's manifest.json.
type manifestEntry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// maxDescription bounds manifest.json and the configurations (bytes).
const maxDescription = 8 << 20

// Read looks into a docker-archive file. It is an error when the file is none,
// or holds an image that has no name or that containerd would pass over.
func Read(file string) (Archive, error) {
	f, err := os.Open(file)
	if err != nil {
		return Archive{}, fmt.Errorf("read image archive: %w", err)
	}
	defer func() { _ = f.Close() }()

	entries, err := readManifest(f)
	if err != nil {
		return Archive{}, fmt.Errorf("%s is no docker-archive (write one with `docker save` or a like tool): %w", file, err)
	}
	wanted := map[string]bool{}
	for _, entry := range entries {
		wanted[path.Clean(entry.Config)] = true
	}
	configs, err := readMembers(f, wanted)
	if err != nil {
		return Archive{}, fmt.Errorf("read image archive %s: %w", file, err)
	}
	archive := Archive{Path: file}
	for _, entry := range entries {
		img, err := describe(entry, configs[path.Clean(entry.Config)])
		if err != nil {
			return Archive{}, fmt.Errorf("image archive %s: %w", file, err)
		}
		archive.Images = append(archive.Images, img)
	}
	return archive, nil
}

func readManifest(f io.ReadSeeker) ([]manifestEntry, error) {
	const name = "manifest.json"
	members, err := readMembers(f, map[string]bool{name: true})
	if err != nil {
		return nil, err
	}
	raw, found := members[name]
	if !found {
		return nil, errors.New("it holds no manifest.json")
	}
	var entries []manifestEntry
	if err := json.Unmarshal(raw, &entries); err != nil {
		return nil, fmt.Errorf("its manifest.json is malformed: %w", err)
	}
	if len(entries) == 0 {
		return nil, errors.New("its manifest.json lists no image")
	}
	return entries, nil
}

// readMembers returns the content of the named members. It skips over the
// layers without reading them.
func readMembers(f io.ReadSeeker, names map[string]bool) (map[string][]byte, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	found := map[string][]byte{}
	r := tar.NewReader(f)
	for len(found) < len(names) {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		name := path.Clean(header.Name)
		if !names[name] || header.Typeflag != tar.TypeReg {
			continue
		}
		if header.Size > maxDescription {
			return nil, fmt.Errorf("%s is %d bytes long, more than any such file has", name, header.Size)
		}
		raw, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		found[name] = raw
	}
	return found, nil
}

func describe(entry manifestEntry, config []byte) (Image, error) {
	if len(entry.RepoTags) == 0 {
		return Image{}, fmt.Errorf("image %s has no name: give it one when you write the archive", entry.Config)
	}
	name := entry.RepoTags[0]
	if config == nil {
		return Image{}, fmt.Errorf("image %s: its configuration %q is missing", name, entry.Config)
	}
	var platform struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	}
	if err := json.Unmarshal(config, &platform); err != nil {
		return Image{}, fmt.Errorf("image %s: its configuration is malformed: %w", name, err)
	}
	// Without these containerd imports the archive and leaves the image out.
	if platform.OS == "" || platform.Architecture == "" {
		return Image{}, fmt.Errorf("image %s: its configuration must say os and architecture", name)
	}
	sum := sha256.Sum256(config)
	return Image{ID: "sha256:" + hex.EncodeToString(sum[:]), Tags: entry.RepoTags}, nil
}
