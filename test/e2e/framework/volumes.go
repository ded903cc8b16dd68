package framework

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// ExampleVolume makes the volume and the claim of an example, whose claims in a namespace find them by their name, of a folder of
// this machine. Remove deletes the volume; the claim goes with its namespace.
func (c *Cluster) ExampleVolume(ctx context.Context, path, namespace, folder string) (remove func(context.Context) error, err error) {
	text, err := os.ReadFile(filepath.Join(c.Checkout, "examples", path))
	if err != nil {
		return nil, err
	}
	first, second, _ := strings.Cut(string(text), "\n---\n")
	volume, claim := &corev1.PersistentVolume{}, &corev1.PersistentVolumeClaim{}
	if err := errors.Join(yaml.UnmarshalStrict([]byte(first), volume), yaml.UnmarshalStrict([]byte(second), claim)); err != nil {
		return nil, fmt.Errorf("read examples/%s, a volume and then a claim: %w", path, err)
	}
	// A volume belongs to no namespace.
	volume.Name, volume.Spec.HostPath.Path = namespace, folder
	claim.Namespace, claim.Spec.VolumeName = namespace, volume.Name
	for _, object := range []client.Object{volume, claim} {
		if err := c.Create(ctx, object); err != nil {
			return nil, fmt.Errorf("create what examples/%s has: %w", path, err)
		}
	}
	return func(ctx context.Context) error { return client.IgnoreNotFound(c.Delete(ctx, volume)) }, nil
}
