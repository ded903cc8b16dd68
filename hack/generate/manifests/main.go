// Command manifests finishes what controller-gen has written, in the tree that it is given:
//
//   - it drops the descriptions below spec.workers.template of the CRD. They are those of
//     Kubernetes' own PodTemplateSpec, make up most of the object, and push it beyond what fits
//     into an annotation or reads well. Those above them stay, their lines joined, as kubectl
//     explain breaks lines itself;
//   - it copies the CRD and the rules of the generated roles into the Helm chart;
//   - it writes the reference of the API.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: manifests ROOT")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "manifests:", err)
		os.Exit(1)
	}
}

// Paths below the root of the tree.
const (
	crdPath       = "config/crd/bases/training.concertina.dev_trainingjobs.yaml"
	rolePath      = "config/rbac/role.yaml"
	chartFilesDir = "charts/concertina/generated"
)

func run(root string) error {
	crd, err := os.ReadFile(filepath.Join(root, crdPath))
	if err != nil {
		return err
	}
	if crd, err = trimCRD(crd); err != nil {
		return fmt.Errorf("%s: %w", crdPath, err)
	}
	manual, err := reference(crd)
	if err != nil {
		return fmt.Errorf("%s: %w", crdPath, err)
	}
	out := map[string][]byte{
		crdPath:                     crd,
		chartFilesDir + "/crd.yaml": crd,
		referencePath:               manual,
	}
	role, err := os.ReadFile(filepath.Join(root, rolePath))
	switch {
	case errors.Is(err, os.ErrNotExist): // no package has a marker
	case err != nil:
		return err
	default:
		rules, err := roleRules(role)
		if err != nil {
			return fmt.Errorf("%s: %w", rolePath, err)
		}
		out[chartFilesDir+"/cluster-role-rules.yaml"] = rules.cluster
		out[chartFilesDir+"/role-rules.yaml"] = rules.namespace
	}
	for path, content := range out {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
