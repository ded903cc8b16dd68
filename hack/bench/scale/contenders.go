package scale

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

const (
	// peersDir holds a Go module for each of the others.
	peersDir = "hack/bench/scale/peers"
	// unlimited stands for no limit of requests a second on the client's side, which the operator has
	// none of either.
	unlimited = "1000000"
	// threads is how many jobs the operator looks at at a time, and others where they let one choose.
	threads = "8"

	jobsetUser, jobControllerUser, trainingOperatorUser = "bench-jobset", "bench-job-controller", "bench-training-operator"
)

// contender is one way to have gangs started.
type contender struct {
	// figure begins the names of its figures, title is for people.
	figure, title string
	// name is how the command line calls it.
	name string
	// program is what is started, definitions the kinds that it knows.
	program     string
	definitions []string
	// start starts its programs. The first is its own, others are parts of Kubernetes that work for it.
	start func(s *server, program string) ([]*process, error)
	// users are the names of these programs, in the same order.
	users []string
	// job is one gang of so many workers.
	job func(namespace, name string, workers int) (client.Object, error)
}

// contenders builds the programs of those that take part in part c.
func (b Bench) contenders(ctx context.Context) ([]contender, error) {
	all := []contender{
		{name: Contenders[0], title: "Concertina", start: startConcertina, users: []string{operatorUser}, job: concertinaJob},
		{name: Contenders[1], figure: "jobset_", title: "JobSet", start: b.startJobSet, users: []string{jobsetUser, jobControllerUser}, job: jobSet},
		{name: Contenders[2], figure: "training_operator_", title: "training-operator", start: startTrainingOperator, users: []string{trainingOperatorUser}, job: pyTorchJob},
	}
	var err error
	if all[0].definitions, err = b.definitions(ctx); err != nil {
		return nil, err
	}
	for i, source := range []struct{ name, dir, pkg, module, definitions string }{
		{name: "operator", dir: ".", pkg: "./cmd/operator"},
		{"jobset", peersDir + "/jobset", "sigs.k8s.io/jobset", "sigs.k8s.io/jobset", "config/components/crd/bases"},
		{
			"training-operator", peersDir + "/training-operator", ".", "github.com/kubeflow/training-operator",
			"manifests/base/crds/kubeflow.org_pytorchjobs.yaml",
		},
	} {
		if !b.takesPart(all[i]) {
			continue
		}
		if all[i].program, err = b.build(ctx, source.name, source.dir, source.pkg); err != nil {
			return nil, err
		}
		if source.module == "" {
			continue
		}
		dir, err := b.moduleDir(ctx, source.dir, source.module)
		if err != nil {
			return nil, err
		}
		all[i].definitions = []string{filepath.Join(dir, source.definitions)}
	}
	return slices.DeleteFunc(all, func(c contender) bool { return !b.takesPart(c) }), nil
}

// takesPart says whether a contender was asked for.
func (b Bench) takesPart(c contender) bool {
	return len(b.Contenders) == 0 || slices.Contains(b.Contenders, c.name)
}

func startConcertina(s *server, program string) ([]*process, error) {
	o, err := startOperator(s, program, "operator")
	if err != nil {
		return nil, err
	}
	return []*process{o.process}, nil
}

func concertinaJob(namespace, name string, workers int) (client.Object, error) {
	return trainingJob(namespace, name, int32(workers)), nil
}

// startJobSet starts JobSet's own manager, whose webhooks nobody calls, and the Job controller of
// Kubernetes.
func (b Bench) startJobSet(s *server, program string) ([]*process, error) {
	config, err := s.jobSetConfig()
	if err != nil {
		return nil, err
	}
	kubeconfig, err := s.kubeconfig(jobsetUser)
	if err != nil {
		return nil, err
	}
	manager, err := startProcess(s.dir, "jobset", program, nil, "--kubeconfig="+kubeconfig, "--config="+config,
		"--metrics-bind-address=0", "--kube-api-qps="+unlimited, "--kube-api-burst="+unlimited)
	if err != nil {
		return nil, err
	}
	started := []*process{manager}
	if kubeconfig, err = s.kubeconfig(jobControllerUser); err != nil {
		return started, err
	}
	jobs, err := startProcess(s.dir, "job-controller", filepath.Join(b.binaries(), "kube-controller-manager"), nil,
		"--kubeconfig="+kubeconfig, "--controllers=job-controller", "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps="+unlimited, "--kube-api-burst="+unlimited)
	if err != nil {
		return started, fmt.Errorf("%w (built by: go run ./hack/cluster build kube-controller-manager)", err)
	}
	return append(started, jobs), nil
}

// startTrainingOperator starts the reconciler of PyTorchJobs, without webhooks.
func startTrainingOperator(s *server, program string) ([]*process, error) {
	kubeconfig, err := s.kubeconfig(trainingOperatorUser)
	if err != nil {
		return nil, err
	}
	p, err := startProcess(s.dir, "training-operator", program, nil, "--kubeconfig="+kubeconfig,
		"--kube-api-qps="+unlimited, "--kube-api-burst="+unlimited, "--controller-threads="+threads)
	if err != nil {
		return nil, err
	}
	return []*process{p}, nil
}

// jobSet is a JobSet with one Job. What JobSet's webhook would fill in is filled in: completionMode,
// the policies and the network.
func jobSet(namespace, name string, workers int) (client.Object, error) {
	return object(`
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
spec:
  successPolicy: {operator: All}
  startupPolicy: {startupPolicyOrder: AnyOrder}
  network: {enableDNSHostnames: true, publishNotReadyAddresses: true}
  replicatedJobs:
  - name: workers
    replicas: 1
    groupName: default
    template:
      spec:
        completionMode: Indexed
        backoffLimit: 0
`, namespace, name, map[string]any{"parallelism": int64(workers), "completions": int64(workers)},
		"trainer", "Never", "spec", "replicatedJobs", 0, "template", "spec")
}

// pyTorchJob is a PyTorchJob with a master and the other workers.
func pyTorchJob(namespace, name string, workers int) (client.Object, error) {
	job, err := object(`
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Master: {replicas: 1, restartPolicy: Never}
    Worker: {restartPolicy: Never}
`, namespace, name, nil, "pytorch", "", "spec", "pytorchReplicaSpecs", "Master")
	if err != nil {
		return nil, err
	}
	return job, withPods(job.Object, map[string]any{"replicas": int64(workers - 1)}, "pytorch", "",
		"spec", "pytorchReplicaSpecs", "Worker")
}

// object reads an object and puts further fields and a pod template where a path leads.
func object(text, namespace, name string, fields map[string]any, container, restart string, path ...any) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		return nil, err
	}
	o.SetNamespace(namespace)
	o.SetName(name)
	return o, withPods(o.Object, fields, container, restart, path...)
}

func withPods(in map[string]any, fields map[string]any, container, restart string, path ...any) error {
	var at any = in
	for _, step := range path {
		switch step := step.(type) {
		case string:
			at = at.(map[string]any)[step]
		case int:
			at = at.([]any)[step]
		}
	}
	trainer := plainContainer(container, 1)
	asFields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&trainer)
	if err != nil {
		return err
	}
	spec := map[string]any{"containers": []any{asFields}}
	if restart != "" {
		spec["restartPolicy"] = restart
	}
	end := at.(map[string]any)
	end["template"] = map[string]any{"spec": spec}
	for name, value := range fields {
		end[name] = value
	}
	return nil
}
