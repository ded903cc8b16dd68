package node

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/util/wait"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/concertina-dev/concertina/hack/cluster/internal/image"
)

// runtime is a connection to the node's containerd.
type runtime struct {
	conn   *grpc.ClientConn
	pods   cri.RuntimeServiceClient
	images cri.ImageServiceClient
}

func (n Node) connect() (runtime, error) {
	conn, err := grpc.NewClient("unix://"+n.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return runtime{}, fmt.Errorf("connect to the container runtime of node %s: %w", n.Name, err)
	}
	return runtime{conn: conn, pods: cri.NewRuntimeServiceClient(conn), images: cri.NewImageServiceClient(conn)}, nil
}

func (r runtime) close() { _ = r.conn.Close() }

// ready waits until containerd answers; alive says whether its process still runs.
func (r runtime) ready(ctx context.Context, alive func() bool) error {
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		if !alive() {
			return false, errors.New("it has ended")
		}
		_, err := r.pods.Version(ctx, &cri.VersionRequest{})
		return err == nil, nil
	})
	return err
}

// clear removes the pods of an earlier life. Their processes are gone; what is
// left are records and addresses.
func (r runtime) clear(ctx context.Context) error {
	list, err := r.pods.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	var errs []error
	for _, pod := range list.Items {
		if _, err := r.pods.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod.Id}); err != nil {
			errs = append(errs, fmt.Errorf("stop pod %s/%s: %w", pod.Metadata.Namespace, pod.Metadata.Name, err))
			continue
		}
		if _, err := r.pods.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod.Id}); err != nil {
			errs = append(errs, fmt.Errorf("remove pod %s/%s: %w", pod.Metadata.Namespace, pod.Metadata.Name, err))
		}
	}
	return errors.Join(errs...)
}

// id returns the digest of the image with the given name, or "" when the node
// does not have it.
func (r runtime) id(ctx context.Context, name string) (string, error) {
	answer, err := r.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
	if err != nil {
		return "", fmt.Errorf("look up image %s: %w", name, err)
	}
	return answer.GetImage().GetId(), nil
}

// missing lists the names of the archive that the node has not, or has for
// another image, and those other images.
func (r runtime) missing(ctx context.Context, archive image.Archive) (names, outdated []string, err error) {
	for _, img := range archive.Images {
		for _, tag := range img.Tags {
			have, err := r.id(ctx, tag)
			if err != nil {
				return nil, nil, err
			}
			if have == img.ID {
				continue
			}
			names = append(names, tag)
			if have != "" && !slices.Contains(outdated, have) {
				outdated = append(outdated, have)
			}
		}
	}
	return names, outdated, nil
}

// Import gives the node the images of an archive. It does nothing, and says
// so, when the node has them already under the same names.
func (n Node) Import(ctx context.Context, archive image.Archive) (imported bool, err error) {
	r, err := n.connect()
	if err != nil {
		return false, err
	}
	defer r.close()
	names, outdated, err := r.missing(ctx, archive)
	if err != nil || len(names) == 0 {
		return false, err
	}
	if err := archive.Fits(n.Layout.Nodes()); err != nil {
		return false, fmt.Errorf("import %s into node %s: %w", archive.Path, n.Name, err)
	}
	// The unpacked layers are what containers use: keeping the packed ones too
	// would double the room that an image takes.
	cmd := exec.CommandContext(ctx, n.Layout.Binary("ctr"), "--address", n.Socket(), "--namespace", "k8s.io",
		"images", "import", "--local", "--discard-unpacked-layers", archive.Path)
	if out, err := cmd.CombinedOutput(); err != nil {
		return false, fmt.Errorf("import %s into node %s: %w: %s", archive.Path, n.Name, err, strings.TrimSpace(string(out)))
	}
	if err := r.awaitImages(ctx, archive); err != nil {
		return false, fmt.Errorf("import %s into node %s: %w", archive.Path, n.Name, err)
	}
	if err := r.forget(ctx, outdated); err != nil {
		return false, err
	}
	return true, n.nameByID(ctx, archive)
}

// nameByID gives the images their names by id, by which image volumes find them. The runtime does so when it sees an image
// for the first time, and not when one takes the name of another.
func (n Node) nameByID(ctx context.Context, archive image.Archive) error {
	for _, img := range archive.Images {
		for _, tag := range img.Tags {
			cmd := exec.CommandContext(ctx, n.Layout.Binary("ctr"), "--address", n.Socket(), "--namespace", "k8s.io",
				"images", "tag", "--force", tag, img.ID)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("name image %s of node %s by its id: %w: %s", tag, n.Name, err, strings.TrimSpace(string(out)))
			}
		}
	}
	return nil
}

// awaitImages waits until the kubelet's view of the images has caught up.
func (r runtime) awaitImages(ctx context.Context, archive image.Archive) error {
	var left []string
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		var err error
		left, _, err = r.missing(ctx, archive)
		return len(left) == 0, err
	})
	if err != nil {
		return fmt.Errorf("the runtime does not show %s: %w", strings.Join(left, ", "), err)
	}
	return nil
}

// forget removes images that have lost their last name to newer ones.
func (r runtime) forget(ctx context.Context, ids []string) error {
	for _, id := range ids {
		answer, err := r.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: id}})
		if err != nil {
			return fmt.Errorf("look up image %s: %w", id, err)
		}
		if answer.GetImage() == nil || len(answer.GetImage().GetRepoTags()) > 0 {
			continue
		}
		if _, err := r.images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: id}}); err != nil {
			return fmt.Errorf("remove image %s: %w", id, err)
		}
	}
	return nil
}
