package platform

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// images are those that the example needs, and the jobs that are named when it is over.
func (p *Platform) images() []string {
	return []string{"operator", "agent", "uploader", p.example, "go-digits"}
}

// operatorTag is the tag under which hack/images builds the operator and the agent.
const operatorTag = "dev"

func (p *Platform) imageFile(name string) string {
	return filepath.Join(p.Cache, "images", name+".tar")
}

func (p *Platform) loadImages(ctx context.Context, out io.Writer) error {
	for _, name := range p.images() {
		if err := p.run(ctx, out, p.tool("cluster"), "image", "load", p.imageFile(name)); err != nil {
			return err
		}
	}
	return nil
}

// installOperator installs or upgrades the chart and waits until the operator is ready. The digest
// of its image goes into an annotation: under a tag that stays the same a new image would
// otherwise not be noticed.
func (p *Platform) installOperator(ctx context.Context, out io.Writer) error {
	digest, err := fileDigest(p.imageFile("operator"))
	if err != nil {
		return fmt.Errorf("read the operator's image: %w", err)
	}
	return p.run(ctx, out, p.Binary("helm"), "upgrade", "--install", Release, filepath.Join(p.Checkout, "charts", "concertina"),
		"--kubeconfig", p.Kubeconfig, "--namespace", Namespace, "--create-namespace",
		"--set-string", "image.tag="+operatorTag,
		"--set-string", "agentImage=localhost/concertina-agent:"+operatorTag,
		"--set-string", "uploaderImage=localhost/concertina-uploader:"+operatorTag,
		"--set-string", "podAnnotations.concertina\\.dev/image="+digest[:16],
		"--wait", "--timeout", "3m")
}

func fileDigest(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
