package main

import (
	_ "embed"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/concertina-dev/concertina/hack/cluster/internal/cluster"
	"github.com/concertina-dev/concertina/hack/cluster/internal/layout"
	"github.com/concertina-dev/concertina/hack/cluster/internal/toolchain"
)

//go:embed deps.txt
var packages string

func newCommand(progress toolchain.Progress) *cobra.Command {
	root := &cobra.Command{
		Use:           "cluster",
		Short:         "Run a real Kubernetes cluster on this machine, without Docker",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(
		upCommand(progress), downCommand(progress), statusCommand(progress), logsCommand(progress),
		nodeCommand(progress), imageCommand(progress), buildCommand(progress), depsCommand(),
		componentVerb(progress, "freeze", "Have a component of the control plane stand still, such as kube-apiserver", cluster.Cluster.Freeze),
		componentVerb(progress, "thaw", "Let a component that stands still go on", cluster.Cluster.Thaw),
	)
	return root
}

// here returns the machine's cluster as the checkout around the working folder sees it.
func here(progress toolchain.Progress) (cluster.Cluster, error) {
	dir, err := os.Getwd()
	if err != nil {
		return cluster.Cluster{}, fmt.Errorf("find the checkout: %w", err)
	}
	l, err := layout.Find(dir)
	if err != nil {
		return cluster.Cluster{}, err
	}
	return cluster.Cluster{Layout: l, Progress: progress}, nil
}

func upCommand(progress toolchain.Progress) *cobra.Command {
	var nodes, gpus int
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the cluster and print the path of its kubeconfig",
		Long: `Start etcd, the API server, the controller manager, the default scheduler, a
second scheduler named coscheduling, kube-proxy, CoreDNS, and for each node a
kubelet with a container runtime of its own. The last line on standard output
is the path of the kubeconfig.

A cluster that runs already is left as it is. There is one per machine; no
packet to or from its pods and services leaves the machine, so pods cannot
reach the internet. Images come with "image load".`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := here(progress)
			if err != nil {
				return err
			}
			if err := c.Up(cmd.Context(), nodes, gpus); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), c.Layout.Kubeconfig())
			return err
		},
	}
	cmd.Flags().IntVar(&nodes, "nodes", 3, "how many nodes")
	cmd.Flags().IntVar(&gpus, "gpus", 4, "how many pretended devices (example.com/gpu) each node has")
	return cmd
}

func downCommand(progress toolchain.Progress) *cobra.Command {
	var images bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "End the cluster, or what is left of one that crashed",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := here(progress)
			if err != nil {
				return err
			}
			return c.Down(cmd.Context(), images)
		},
	}
	cmd.Flags().BoolVar(&images, "images", false, "remove the loaded images too, instead of keeping them for the next cluster")
	return cmd
}

func statusCommand(progress toolchain.Progress) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show what runs; fails when something that should does not",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := here(progress)
			if err != nil {
				return err
			}
			return c.Status(cmd.Context(), cmd.OutOrStdout())
		},
	}
}

func logsCommand(progress toolchain.Progress) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs COMPONENT",
		Short: "Print the log of a component, such as kube-apiserver or node-1-kubelet",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := here(progress)
			if err != nil {
				return err
			}
			path, err := c.Log(args[0])
			if err != nil {
				return err
			}
			flags := []string{"-n", "+1"}
			if follow {
				flags = append(flags, "-F")
			}
			tail := exec.CommandContext(cmd.Context(), "tail", append(flags, path)...)
			tail.Stdout, tail.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			if err := tail.Run(); err != nil && cmd.Context().Err() == nil {
				return fmt.Errorf("print %s: %w", path, err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on printing what is added")
	return cmd
}

func nodeCommand(progress toolchain.Progress) *cobra.Command {
	group := &cobra.Command{Use: "node", Short: "Add, remove, kill, cut off or drain a node of the running cluster"}
	gpus := -1
	add := nodeVerb(progress, "add", "Start a new node, bring a killed one back, or open a drained one again",
		func(cmd *cobra.Command, c cluster.Cluster, name string) error {
			return c.AddNode(cmd.Context(), name, gpus)
		})
	add.Flags().IntVar(&gpus, "gpus", -1, "how many pretended devices it has (default: as `up` said)")
	var timeout time.Duration
	drain := nodeVerb(progress, "drain", "Close a node to new pods and evict those that it has",
		func(cmd *cobra.Command, c cluster.Cluster, name string) error {
			return c.DrainNode(cmd.Context(), name, timeout)
		})
	drain.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait until its pods are gone")
	group.AddCommand(add, drain, cutCommand(progress),
		nodeVerb(progress, "join", "Take a node back that was cut off",
			func(cmd *cobra.Command, c cluster.Cluster, name string) error {
				return c.JoinNode(cmd.Context(), name)
			}),
		nodeVerb(progress, "remove", "Stop a node in good order and delete its object",
			func(cmd *cobra.Command, c cluster.Cluster, name string) error {
				return c.RemoveNode(cmd.Context(), name)
			}),
		nodeVerb(progress, "kill", "End a node at once as a power failure does",
			func(cmd *cobra.Command, c cluster.Cluster, name string) error {
				return c.KillNode(cmd.Context(), name)
			}),
	)
	return group
}

func cutCommand(progress toolchain.Progress) *cobra.Command {
	var addresses []string
	cut := nodeVerb(progress, "cut", "Take a node off the network while everything on it runs on",
		func(cmd *cobra.Command, c cluster.Cluster, name string) error {
			var from []netip.Prefix
			for _, address := range addresses {
				prefix, err := parsePrefix(address)
				if err != nil {
					return err
				}
				from = append(from, prefix)
			}
			return c.CutNode(cmd.Context(), name, from)
		})
	cut.Flags().StringSliceVar(&addresses, "from", nil,
		"addresses or ranges that its pods do not reach any more (default: everybody, and its kubelet stands still)")
	return cut
}

// parsePrefix reads a range of addresses, or one of them.
func parsePrefix(text string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return prefix, fmt.Errorf("--from %s is no address and no range such as 10.244.2.0/24", text)
	}
	return prefix, nil
}

func nodeVerb(progress toolchain.Progress, verb, short string, run func(*cobra.Command, cluster.Cluster, string) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NAME", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := here(progress)
			if err != nil {
				return err
			}
			return run(cmd, c, args[0])
		},
	}
}

func componentVerb(progress toolchain.Progress, verb, short string, run func(cluster.Cluster, string) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " COMPONENT", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := here(progress)
			if err != nil {
				return err
			}
			return run(c, args[0])
		},
	}
}

func imageCommand(progress toolchain.Progress) *cobra.Command {
	group := &cobra.Command{Use: "image", Short: "Give images to the nodes"}
	group.AddCommand(&cobra.Command{
		Use:   "load FILE...",
		Short: "Import docker-archive files into every node, also into those that join later",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			c, err := here(progress)
			if err != nil {
				return err
			}
			for _, file := range files {
				if err := c.LoadImage(cmd.Context(), file); err != nil {
					return err
				}
			}
			return nil
		},
	})
	return group
}

func buildCommand(progress toolchain.Progress) *cobra.Command {
	return &cobra.Command{
		Use:   "build [NAME...]",
		Short: "Build the cluster's programs, all or the named ones, as far as they are stale",
		Long: `Build the cluster's programs from the Go modules under hack/cluster/binaries
into .cache/bin (or $` + layout.CacheEnv + `/bin), and print that folder. Integration
tests need etcd, kube-apiserver, kubectl and podgroups.yaml.`,
		RunE: func(cmd *cobra.Command, names []string) error {
			c, err := here(progress)
			if err != nil {
				return err
			}
			if err := toolchain.Build(cmd.Context(), c.Layout, progress, names...); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), c.Layout.Bin)
			return err
		},
	}
}

func depsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "deps",
		Short: "List the Debian packages that the cluster needs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.Copy(cmd.OutOrStdout(), strings.NewReader(packages))
			return err
		},
	}
}
