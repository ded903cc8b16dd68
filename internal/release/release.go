// Package release tells which version of Concertina a program is of, and what it can talk to: an administrator who goes
// back to another one has to know both.
package release

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

const (
	// Protocol is the version of what agents and the operator say to each other: it changes when something that is said
	// already gets another meaning.
	Protocol = 2
	// Manifest is the newest version of manifests of checkpoints that is read and written.
	Manifest = 3
)

// version is what `make build CONCERTINA_VERSION=...` says.
var version = "dev"

// Info is what is known of the program that asks.
type Info struct {
	Version string `json:"version"`
	// Revision is the commit that it was built from; empty where the build did not ask git.
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	Protocol int    `json:"protocol"`
	Manifest int    `json:"manifest"`
}

// Get tells about this program.
func Get() Info {
	info := Info{Version: version, Go: runtime.Version(), Protocol: Protocol, Manifest: Manifest}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range build.Settings {
			if setting.Key == "vcs.revision" {
				info.Revision = setting.Value
			}
		}
	}
	return info
}

// String is one line.
func (i Info) String() string {
	revision := ""
	if i.Revision != "" {
		revision = ", revision " + i.Revision
	}
	return fmt.Sprintf("%s (protocol of agents %d, manifests of checkpoints up to %d%s, %s)", i.Version, i.Protocol, i.Manifest, revision, i.Go)
}
