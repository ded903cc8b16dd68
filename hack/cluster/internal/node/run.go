package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/concertina-dev/concertina/hack/cluster/internal/image"
	"github.com/concertina-dev/concertina/hack/cluster/internal/network"
	"github.com/concertina-dev/concertina/hack/cluster/internal/process"
	"github.com/concertina-dev/concertina/hack/cluster/internal/toolchain"
)

// StartRuntime starts the node's container runtime and gives it the pause
// image. Pods that an earlier cluster has left in the runtime's records are
// removed, unless the node comes back to the same cluster (returns): then its
// kubelet deals with them, as after a reboot.
func (n Node) StartRuntime(ctx context.Context, returns bool) error {
	if err := n.writeConfig(); err != nil {
		return err
	}
	for _, dir := range []string{n.runtimeState(), n.images(), n.kubelet(), n.podLogs(), n.cni()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("start node %s: %w", n.Name, err)
		}
	}
	log := n.Layout.Log(n.ContainerdLog())
	id, err := process.Start(process.Spec{
		Name: "containerd", Node: n.Name, Path: n.Layout.Binary("containerd"),
		Args: []string{"--config", n.containerdFile()}, Env: n.Host.Env, Log: log,
	})
	if err != nil {
		return err
	}
	r, err := n.connect()
	if err != nil {
		return err
	}
	defer r.close()
	if err := r.ready(ctx, id.Running); err != nil {
		return fmt.Errorf("the container runtime of node %s does not answer (should its image store be damaged, `down --images` removes it): %w; the end of %s:\n%s",
			n.Name, err, log, process.Tail(log, 15))
	}
	if !returns {
		if err := r.clear(ctx); err != nil {
			return fmt.Errorf("clear node %s: %w", n.Name, err)
		}
	}
	pause, err := image.Read(n.Layout.Binary(toolchain.PauseArchive))
	if err != nil {
		return err
	}
	_, err = n.Import(ctx, pause)
	return err
}

// DevicePlugins is the one folder that kubelets use whatever their settings, and deviceSocket what each of them
// makes anew in it.
const (
	DevicePlugins = "/var/lib/kubelet/device-plugins"
	deviceSocket  = DevicePlugins + "/kubelet.sock"
)

const (
	// deviceSocketPatience is how long a kubelet may take to make its socket, deviceSocketPoll how often we look.
	deviceSocketPatience = 20 * time.Second
	deviceSocketPoll     = 10 * time.Millisecond
)

// kubelets is held while one makes its socket: each clears away that of the others first, and of two that do so
// at once one finds the address in use and ends.
var kubelets sync.Mutex

// StartKubelet starts the node's kubelet; the API server must run.
func (n Node) StartKubelet(ctx context.Context) (process.ID, error) {
	kubelets.Lock()
	defer kubelets.Unlock()
	before := madeAt(deviceSocket)
	id, err := n.startKubelet(ctx)
	if err != nil {
		return id, err
	}
	ctx, stop := context.WithTimeout(ctx, deviceSocketPatience)
	defer stop()
	look := time.NewTicker(deviceSocketPoll)
	defer look.Stop()
	for id.Running() && madeAt(deviceSocket).Equal(before) {
		select {
		case <-look.C:
		case <-ctx.Done():
			return id, nil // whoever waits for the node says what is wrong
		}
	}
	return id, nil
}

// madeAt is when a file was made; zero when there is none.
func madeAt(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

func (n Node) startKubelet(ctx context.Context) (process.ID, error) {
	if err := network.AddNode(ctx, n.Number); err != nil {
		return process.ID{}, err
	}
	if err := n.writeCredentials(); err != nil {
		return process.ID{}, err
	}
	return process.Start(process.Spec{
		Name: "kubelet", Node: n.Name, Path: n.Layout.Binary("kubelet"),
		Args: []string{
			"--config=" + n.kubeletFile(),
			"--kubeconfig=" + n.kubeconfigFile(),
			"--hostname-override=" + n.Name,
			"--node-ip=" + n.ip(),
			"--root-dir=" + n.kubelet(),
			"--cert-dir=" + filepath.Join(n.kubelet(), "pki"),
		},
		Env: n.Host.Env, Log: n.Layout.Log(n.KubeletLog()), Urgent: true,
	})
}

// stopGrace is how long a kubelet that is asked to end may take.
const stopGrace = 5 * time.Second

// Stop ends the node in good order: the kubelet, then its pods, then the
// runtime. The pods' containers are killed without delay.
func (n Node) Stop(ctx context.Context, mine []process.Mark) error {
	for _, mark := range mine {
		if mark.Component == "kubelet" {
			if err := mark.ID.Stop(stopGrace); err != nil {
				return err
			}
		}
	}
	r, err := n.connect()
	if err != nil {
		return err
	}
	defer r.close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return r.clear(ctx)
}
