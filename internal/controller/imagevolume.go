package controller

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
)

// The first versions that mount the files of an image as a volume without being asked to: Kubernetes has the feature on
// since 1.35, containerd has it since 2.1, and CRI-O in the form that Kubernetes asks for since 1.33.
var (
	kubeletWithImageVolumes  = version.MajorMinor(1, 35)
	runtimesWithImageVolumes = map[string]*version.Version{
		"containerd": version.MajorMinor(2, 1),
		"cri-o":      version.MajorMinor(1, 33),
	}
)

// MountsImages says whether pods on a node may have the files of an image as a volume, by the versions that its kubelet
// tells of itself and of its container runtime. It is false where these say nothing that is known.
func MountsImages(node *corev1.Node) bool {
	runtime, said, found := strings.Cut(node.Status.NodeInfo.ContainerRuntimeVersion, "://")
	needed := runtimesWithImageVolumes[runtime]
	return found && needed != nil && atLeast(said, needed) && atLeast(node.Status.NodeInfo.KubeletVersion, kubeletWithImageVolumes)
}

func atLeast(said string, needed *version.Version) bool {
	is, err := version.ParseGeneric(said)
	return err == nil && is.AtLeast(needed)
}
