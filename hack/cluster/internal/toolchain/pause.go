package toolchain

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/concertina-dev/concertina/hack/cluster/internal/image"
)

// PauseArchive is the image whose container holds a pod's namespaces.
const PauseArchive = "pause.tar"

// PauseImage is the name of that image.
const PauseImage = "localhost/pause:1"

func pauseArtifact(dir string) artifact {
	return artifact{
		name: PauseArchive, from: "hack/cluster/pause", cold: 5 * time.Second, dir: dir,
		recipe: []string{PauseImage},
		make: func(ctx context.Context, to string) error {
			program := to + ".program"
			defer func() { _ = os.Remove(program) }()
			if err := goBuild(ctx, dir, program, ".", "-ldflags", "-s -w"); err != nil {
				return err
			}
			return image.WriteProgram(filepath.Clean(to), PauseImage, program, "/pause")
		},
	}
}
