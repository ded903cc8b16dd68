package main

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/internal/release"
)

func versionCommand() *cobra.Command {
	var f format
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Tells the version of this program, and of what its operator and agents say and write.",
		Long: `Tells the version of this program, and of what an operator and agents of it say to each other and write. Plans are made by this
program's own planner: they are the operator's where it is of the same version, which its --version and its metric
concertina_build_info tell; plan and explain warn where it is of another one. No cluster is asked.`,
		Example: `  kubectl concertina version
  kubectl concertina version -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.validate(); err != nil {
				return err
			}
			info := release.Get()
			return f.write(cmd.OutOrStdout(), info, func(out io.Writer) error {
				_, err := fmt.Fprintln(out, info)
				return err
			})
		},
	}
	f.addFlags(cmd, "text")
	return cmd
}

// isVersion is what a release is called. Programs that were built without a version have none to be compared, and images that were
// tagged otherwise do not tell it.
var isVersion = regexp.MustCompile(`^v?[0-9]+\.[0-9]+`)

// otherVersions are the versions of operators in a namespace that are not this program's, by the tags of their images.
func otherVersions(own, namespace string, pods []*corev1.Pod) []string {
	if !isVersion.MatchString(own) {
		return nil
	}
	others := map[string]bool{}
	for _, pod := range pods {
		if pod.Namespace != namespace || pod.Labels["app.kubernetes.io/component"] != "operator" {
			continue
		}
		for i := range pod.Spec.Containers {
			one := &pod.Spec.Containers[i]
			if tag := tagOf(one.Image); one.Name == "operator" && isVersion.MatchString(tag) && strings.TrimPrefix(tag, "v") != strings.TrimPrefix(own, "v") {
				others[tag] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(others))
}

// tagOf is the tag of an image; empty for none.
func tagOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	_, tag, _ := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":") // a registry may have a port
	return tag
}
