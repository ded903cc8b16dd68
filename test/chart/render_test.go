// Package chart checks what charts/concertina and config/ make of their options: every object must
// decode strictly into its type, and the two ways to install must agree.
package chart

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

const (
	root      = "../.."
	release   = "concertina"
	namespace = "concertina-system"
)

// program runs one of the pinned binaries in the root of the checkout.
func program(name string, stdin string, args ...string) (string, error) {
	cache := os.Getenv("CONCERTINA_CACHE")
	if cache == "" {
		cache = filepath.Join(root, ".cache")
	}
	path, err := filepath.Abs(filepath.Join(cache, "bin", name))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w: it is built by: go run ./hack/cluster build", err)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = root
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, stderr.String())
	}
	return string(out), nil
}

// helm renders the chart with values in YAML.
func helm(values string) (string, error) {
	return program("helm", values, "template", release, "charts/concertina", "--namespace", namespace, "--values", "-")
}

// installed is all that an installation with values in YAML would make and say: its notes are rendered too. No cluster is asked.
func installed(values string) (string, error) {
	out, err := program("helm", values, "install", release, "charts/concertina", "--namespace", namespace, "--dry-run=client", "--values", "-")
	_, made, _ := strings.Cut(out, "\nHOOKS:") // before it stands when
	return made, err
}

// objects are decoded, by "Kind name".
type objects map[string]client.Object

// decode reads a stream of objects. Unknown and repeated fields are errors.
func decode(t *testing.T, stream string) objects {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	found := objects{}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(stream)))
	for {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		object, err := decodeOne(decoder, doc)
		if err != nil {
			t.Fatalf("%v in:\n%s", err, doc)
		}
		if object == nil {
			continue
		}
		key := object.GetObjectKind().GroupVersionKind().Kind + " " + object.GetName()
		if found[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		found[key] = object
	}
}

// decodeOne returns nil for a document without content.
func decodeOne(decoder runtime.Decoder, doc []byte) (client.Object, error) {
	var fields map[string]any
	if err := yaml.Unmarshal(doc, &fields); err != nil || len(fields) == 0 {
		return nil, err
	}
	// The types of the Prometheus operator and of cert-manager are not among the module's dependencies.
	if version := fields["apiVersion"]; version == "monitoring.coreos.com/v1" || version == "cert-manager.io/v1" {
		return &unstructured.Unstructured{Object: fields}, nil
	}
	decoded, kind, err := decoder.Decode(doc, nil, nil)
	if err != nil {
		return nil, err
	}
	object, ok := decoded.(client.Object)
	if !ok {
		return nil, fmt.Errorf("%s is no object with metadata", kind)
	}
	object.GetObjectKind().SetGroupVersionKind(*kind)
	return object, nil
}

func rendered(t *testing.T, values string) objects {
	t.Helper()
	out, err := helm(values)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, out)
}

func kustomized(t *testing.T, dir string) objects {
	t.Helper()
	out, err := program("kubectl", "", "kustomize", dir)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, out)
}

// get returns the object of that kind and name.
func get[T client.Object](t *testing.T, found objects, key string) T {
	t.Helper()
	object, ok := found[key].(T)
	if !ok {
		t.Fatalf("no %s", key)
	}
	return object
}
