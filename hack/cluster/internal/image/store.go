package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Store is the folder of the archives that every node gets. It holds copies:
// the file that somebody loaded may be overwritten or gone when the next node
// joins.
type Store struct{ Dir string }

const indexFile = "index.json"

// List returns the remembered archives, oldest first.
func (s Store) List() ([]Archive, error) {
	raw, err := os.ReadFile(filepath.Join(s.Dir, indexFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the list of loaded images: %w", err)
	}
	var archives []Archive
	if err := json.Unmarshal(raw, &archives); err != nil {
		return nil, fmt.Errorf("read the list of loaded images %s: %w", filepath.Join(s.Dir, indexFile), err)
	}
	return archives, nil
}

// Add remembers an archive and forgets those whose names it has all taken
// over. The result lies in the store; a known archive is not copied again.
func (s Store) Add(archive Archive) (Archive, error) {
	known, err := s.List()
	if err != nil {
		return Archive{}, err
	}
	stored := Archive{Path: filepath.Join(s.Dir, fileName(archive)), Images: archive.Images}
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return Archive{}, fmt.Errorf("remember image archive: %w", err)
	}
	if _, err := os.Stat(stored.Path); err != nil {
		if err := copyFile(archive.Path, stored.Path); err != nil {
			return Archive{}, fmt.Errorf("remember image archive %s: %w", archive.Path, err)
		}
	}
	kept, dropped := supersede(known, stored)
	if err := s.write(kept); err != nil {
		return Archive{}, err
	}
	for _, old := range dropped {
		if err := os.Remove(old.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return Archive{}, fmt.Errorf("forget image archive: %w", err)
		}
	}
	return stored, nil
}

// supersede returns the list with the new archive last, and the archives that
// no longer name anything.
func supersede(known []Archive, added Archive) (kept, dropped []Archive) {
	taken := map[string]bool{}
	for _, img := range added.Images {
		for _, tag := range img.Tags {
			taken[tag] = true
		}
	}
	for _, old := range known {
		if old.Path == added.Path {
			continue
		}
		outlived := !slices.ContainsFunc(old.Images, func(img Image) bool {
			return slices.ContainsFunc(img.Tags, func(tag string) bool { return !taken[tag] })
		})
		if outlived {
			dropped = append(dropped, old)
		} else {
			kept = append(kept, old)
		}
	}
	return append(kept, added), dropped
}

func (s Store) write(archives []Archive) error {
	raw, err := json.MarshalIndent(archives, "", "  ")
	if err != nil {
		return fmt.Errorf("write the list of loaded images: %w", err)
	}
	path := filepath.Join(s.Dir, indexFile)
	if err := os.WriteFile(path+".new", raw, 0o644); err != nil {
		return fmt.Errorf("write the list of loaded images: %w", err)
	}
	return os.Rename(path+".new", path)
}

// fileName is made of the images' digests and names: a second name for the
// same image makes another archive.
func fileName(archive Archive) string {
	var key strings.Builder
	for _, img := range archive.Images {
		_, _ = fmt.Fprintln(&key, img.ID, img.Tags)
	}
	return digest([]byte(key.String()))[:24] + ".tar"
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.Create(to + ".new")
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	err = errors.Join(err, out.Close())
	if err != nil {
		_ = os.Remove(to + ".new")
		return err
	}
	return os.Rename(to+".new", to)
}
