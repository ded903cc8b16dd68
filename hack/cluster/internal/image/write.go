package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"runtime"
	"strings"
)

// WriteProgram writes an image that holds one static program, which it runs as
// an ordinary user, to the file to. The same program gives the same bytes.
func WriteProgram(to, name, program, inside string) error {
	binary, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("write image %s: %w", name, err)
	}
	layer, err := archive(member{strings.TrimPrefix(path.Clean(inside), "/"), 0o755, binary})
	if err != nil {
		return fmt.Errorf("write image %s: %w", name, err)
	}
	config, err := json.Marshal(map[string]any{
		"os":           runtime.GOOS,
		"architecture": runtime.GOARCH,
		"config":       map[string]any{"Entrypoint": []string{inside}, "User": "65535:65535"},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer)}},
	})
	if err != nil {
		return fmt.Errorf("write image %s: %w", name, err)
	}
	manifest, err := json.Marshal([]manifestEntry{{
		Config: digest(config) + ".json", RepoTags: []string{name}, Layers: []string{"layer.tar"},
	}})
	if err != nil {
		return fmt.Errorf("write image %s: %w", name, err)
	}
	whole, err := archive(
		member{"manifest.json", 0o644, manifest},
		member{digest(config) + ".json", 0o644, config},
		member{"layer.tar", 0o644, layer},
	)
	if err != nil {
		return fmt.Errorf("write image %s: %w", name, err)
	}
	return os.WriteFile(to, whole, 0o644)
}

type member struct {
	name string
	mode int64
	data []byte
}

func archive(members ...member) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, m := range members {
		header := &tar.Header{Name: m.name, Mode: m.mode, Size: int64(len(m.data)), Typeflag: tar.TypeReg}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(m.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
