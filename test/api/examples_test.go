package api

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// manifests are the objects of all files that a reader may apply: examples, samples, and the job of the README.
// Namespaces come first. Values of the chart are none.
func manifests() map[string][]*unstructured.Unstructured {
	GinkgoHelper()
	texts := map[string]string{}
	for _, pattern := range []string{"examples/*/*.yaml", "config/samples/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		Expect(err).NotTo(HaveOccurred())
		for _, file := range files {
			if name := filepath.Base(file); name == "values.yaml" || name == "kustomization.yaml" {
				continue
			}
			content, err := os.ReadFile(file)
			Expect(err).NotTo(HaveOccurred())
			texts[strings.TrimPrefix(file, root+"/")] = string(content)
		}
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	Expect(err).NotTo(HaveOccurred())
	_, rest, found := strings.Cut(string(readme), "```yaml\n")
	Expect(found).To(BeTrue())
	texts["README.md"], _, _ = strings.Cut(rest, "```")

	all := map[string][]*unstructured.Unstructured{}
	for file, text := range texts {
		documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewBufferString(text)))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			Expect(err).NotTo(HaveOccurred())
			object := &unstructured.Unstructured{}
			Expect(yaml.UnmarshalStrict(document, &object.Object)).To(Succeed(), file)
			all[file] = append(all[file], object)
		}
	}
	return all
}

var _ = Describe("What the documentation has readers apply", func() {
	It("is accepted, field by field, and no two jobs have one name", func(ctx context.Context) {
		all := manifests()
		Expect(all).To(HaveKey("examples/teams/sweep.yaml"))
		Expect(all).To(HaveKey("examples/pytorch-digits/best.yaml"))
		strict := client.WithFieldValidation(cluster, "Strict")
		seen := map[string]string{}
		for _, namespaces := range []bool{true, false} {
			for file, objects := range all {
				for _, object := range objects {
					if (object.GetKind() == "Namespace") != namespaces {
						continue
					}
					object = object.DeepCopy()
					switch {
					case object.GetKind() == "PriorityClass" || object.GetKind() == "PersistentVolume" || namespaces:
					case object.GetNamespace() == "":
						object.SetNamespace("default")
					}
					name := object.GetKind() + " " + object.GetNamespace() + "/" + object.GetName()
					Expect(seen).NotTo(HaveKey(name), "%s and %s would overwrite each other", file, seen[name])
					seen[name] = file
					var options []client.CreateOption
					if !namespaces {
						options = append(options, client.DryRunAll)
					}
					Expect(strict.Create(ctx, object, options...)).To(Succeed(), "%s: %s", file, name)
				}
			}
		}
	})
})
