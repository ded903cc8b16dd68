package framework

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Names of the images, as hack/images knows them.
const (
	OperatorImage = "concertina-operator"
	AgentImage    = "concertina-agent"
	UploaderImage = "concertina-uploader"
	S3Image       = "versitygw"
	GoDigits      = "go-digits"
	PyTorchDigits = "pytorch-digits"
	Frameworks    = "frameworks"
)

// everyTest are those that every run of the tests wants.
var everyTest = []string{OperatorImage, AgentImage, UploaderImage, S3Image, GoDigits, PyTorchDigits}

// Image is the reference of one of the project's images. E2E_REGISTRY (default localhost) and
// E2E_TAG (default dev) say where an existing cluster has them from.
func Image(name string) string {
	return fromEnv("E2E_REGISTRY", "localhost") + "/" + name + ":" + Tag()
}

// Tag is the tag of the images.
func Tag() string { return fromEnv("E2E_TAG", "dev") }

func fromEnv(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// MissingImages says which images which nodes lack, and what to do; nil when none is missing. The
// nodes of an existing cluster may pull them, so there it is always nil. Without names it is about those that every test wants.
func (c *Cluster) MissingImages(ctx context.Context, names ...string) error {
	if c.Kind == Existing {
		return nil
	}
	nodes, err := c.ReadyNodes(ctx)
	if err != nil {
		return err
	}
	var missing []string
	if len(names) == 0 {
		names = everyTest
	}
	for _, name := range names {
		var lacking []string
		for i := range nodes {
			if !hasImage(&nodes[i], Image(name)) {
				lacking = append(lacking, nodes[i].Name)
			}
		}
		if len(lacking) > 0 {
			missing = append(missing, fmt.Sprintf("%s (on %s)", Image(name), strings.Join(lacking, ", ")))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	how := "`go run ./hack/images build`, then `go run ./hack/cluster image load .cache/images/*.tar`"
	if c.Kind == KIND {
		how = "`go run ./hack/images build`, then `hack/kind/up.sh`"
	}
	return fmt.Errorf("images are missing: %s: run %s; `make test-e2e` does both", strings.Join(missing, "; "), how)
}

func hasImage(node *corev1.Node, reference string) bool {
	return slices.ContainsFunc(node.Status.Images, func(image corev1.ContainerImage) bool {
		return slices.Contains(image.Names, reference)
	})
}
