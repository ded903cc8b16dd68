// Package layout says where everything of the local cluster lies: the built
// binaries in the checkout's cache folder, the running cluster's state in one
// folder of the machine.
//
// There is one cluster per machine, because its address ranges and packet
// filter chains belong to the machine. So its state is found from any
// checkout, also after the one that started it was deleted, and its path is
// short: a unix socket's path may have at most 107 characters.
package layout

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// StateDir holds the running cluster: pids, logs, certificates, node roots.
const StateDir = "/var/lib/concertina-cluster"

// CacheEnv names the environment variable that moves the folder of built
// binaries out of the checkout, so that several checkouts share one.
const CacheEnv = "CONCERTINA_CACHE"

const modulePath = "github.com/concertina-dev/concertina"

// Layout is the set of folders that the tool works with.
type Layout struct {
	// Checkout is the root of the source tree.
	Checkout string
	// Bin holds the built binaries.
	Bin string
	// State holds the running cluster.
	State string
}

// Find returns the layout for the checkout that contains the folder from.
// It is an error when from lies in no checkout of this module.
func Find(from string) (Layout, error) {
	root, err := checkoutRoot(from)
	if err != nil {
		return Layout{}, err
	}
	cache := os.Getenv(CacheEnv)
	if cache == "" {
		cache = filepath.Join(root, ".cache")
	}
	cache, err = filepath.Abs(cache)
	if err != nil {
		return Layout{}, fmt.Errorf("find the folder that %s names: %w", CacheEnv, err)
	}
	return Layout{Checkout: root, Bin: filepath.Join(cache, "bin"), State: StateDir}, nil
}

func checkoutRoot(from string) (string, error) {
	dir, err := filepath.Abs(from)
	if err != nil {
		return "", fmt.Errorf("find the checkout: %w", err)
	}
	for {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(mod), "module "+modulePath+"\n") {
			return dir, nil
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("find the checkout: %w", err)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("%s is not inside a checkout of %s: run this command from one", from, modulePath)
		}
		dir = parent
	}
}

// Binary returns the path of a built binary.
func (l Layout) Binary(name string) string { return filepath.Join(l.Bin, name) }

// Modules returns the folder with the Go modules that pin the binaries.
func (l Layout) Modules() string {
	return filepath.Join(l.Checkout, "hack", "cluster", "binaries")
}

// Kubeconfig returns the path of the administrator's kubeconfig.
func (l Layout) Kubeconfig() string { return filepath.Join(l.State, "kubeconfig") }

// ClusterFile returns the path of the cluster's own record.
func (l Layout) ClusterFile() string { return filepath.Join(l.State, "cluster.json") }

// LockFile returns the path of the lock that commands which change the cluster hold.
func (l Layout) LockFile() string { return filepath.Join(l.State, "lock") }

// PKI returns the folder of certificates, keys and the components' kubeconfigs.
func (l Layout) PKI() string { return filepath.Join(l.State, "pki") }

// Etcd returns etcd's data folder.
func (l Layout) Etcd() string { return filepath.Join(l.State, "etcd") }

// Config returns the folder of the control plane's configuration files.
func (l Layout) Config() string { return filepath.Join(l.State, "config") }

// Logs returns the folder of the components' logs; it outlives the cluster.
func (l Layout) Logs() string { return filepath.Join(l.State, "logs") }

// Log returns the path of one component's log.
func (l Layout) Log(component string) string {
	return filepath.Join(l.Logs(), component+".log")
}

// Images returns the folder of the image archives that every node gets.
func (l Layout) Images() string { return filepath.Join(l.State, "images") }

// Nodes returns the folder that holds one folder per node.
func (l Layout) Nodes() string { return filepath.Join(l.State, "nodes") }

// Node returns the folder of one node.
func (l Layout) Node(name string) string { return filepath.Join(l.Nodes(), name) }
