package controller

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestWhichNodesMountImages(t *testing.T) {
	for _, c := range []struct {
		kubelet, runtime string
		want             bool
	}{
		{"v1.37.1", "containerd://2.2.1", true},
		{"v1.35.0", "containerd://2.1.0", true},
		{"v1.35.2-gke.1100", "containerd://2.1.4+unknown", true},
		{"v1.36.0+k3s1", "containerd://2.2.0-k3s1", true},
		{"v1.35.0", "cri-o://1.33.0", true},
		{"v1.34.9", "containerd://2.2.1", false},
		{"v1.37.1", "containerd://2.0.5", false},
		{"v1.37.1", "containerd://1.7.28", false},
		{"v1.37.1", "cri-o://1.32.4", false},
		{"v1.37.1", "docker://28.0.0", false},
		{"v1.37.1", "2.2.1", false},
		{"v1.37.1", "containerd://", false},
		{"", "containerd://2.2.1", false},
		{"", "", false},
	} {
		node := &corev1.Node{Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: c.kubelet, ContainerRuntimeVersion: c.runtime}}}
		if got := MountsImages(node); got != c.want {
			t.Errorf("kubelet %s with %s: %v", c.kubelet, c.runtime, got)
		}
	}
}

// With a volume of its image the agent needs no container of its own, and all else of the pod is the same.
func TestTheAgentComesAsAVolume(t *testing.T) {
	job := jobWith(running)
	withStorage(job)
	copied := newPod(job, settings, 3, 0)
	bySetting := settings
	bySetting.ImageVolume = true
	mounted := newPod(job, bySetting, 3, 0)

	installs := func(c corev1.Container) bool { return c.Name == agentName }
	if !slices.ContainsFunc(copied.Spec.InitContainers, installs) || slices.ContainsFunc(mounted.Spec.InitContainers, installs) {
		t.Fatalf("init containers: copied %d, mounted %d", len(copied.Spec.InitContainers), len(mounted.Spec.InitContainers))
	}
	if first := mounted.Spec.InitContainers[0].Name; first != uploaderName {
		t.Errorf("the first init container is %s", first)
	}
	i := slices.IndexFunc(mounted.Spec.Volumes, func(v corev1.Volume) bool { return v.Image != nil })
	if i < 0 || mounted.Spec.Volumes[i].Image.Reference != settings.AgentImage {
		t.Fatalf("its volumes are %+v", mounted.Spec.Volumes)
	}
	mounts := mounted.Spec.Containers[0].VolumeMounts
	m := slices.IndexFunc(mounts, func(m corev1.VolumeMount) bool { return m.Name == mounted.Spec.Volumes[i].Name })
	if m < 0 || mounts[m].MountPath+"/agent" != mounted.Spec.Containers[0].Command[0] || !mounts[m].ReadOnly {
		t.Errorf("the trainer has %+v and runs %v", mounts, mounted.Spec.Containers[0].Command)
	}
	if len(mounted.Spec.Volumes) != len(copied.Spec.Volumes)+1 || !slices.Equal(mounted.Spec.Containers[0].Command, copied.Spec.Containers[0].Command) {
		t.Errorf("it differs in more: %+v", mounted.Spec)
	}
}
