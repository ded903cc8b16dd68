package peers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/bench/apiserver"
	"github.com/concertina-dev/concertina/hack/demo/kube"
)

const (
	jobNamespace = "bench"
	// endPatience is how long a process may take to end.
	endPatience = 20 * time.Second
	// nodes are more than there are members: a node is avoided for a while after one was lost there.
	nodes = 12
)

// programs are those of Concertina's contenders, with their arguments.
var programs = map[string][]string{
	ours:            {"train.py"},
	oursShards:      {"train_sharded.py"},
	oursShardsFiles: {"train_sharded.py", "--from-files"},
}

// cluster is Concertina's contender: an API server with its etcd, the operator, and what plays scheduler and kubelets.
type cluster struct {
	place
	environment *envtest.Environment
	client      client.Client
	core        kubernetes.Interface
	operator    *exec.Cmd
	operatorEnd chan struct{}

	// pending are the pods that nobody has started yet.
	pending chan *corev1.Pod
	started int
	stopped context.CancelFunc
	// running are the members that were started.
	mu      sync.Mutex
	running []*member
	playing sync.WaitGroup
}

func (*cluster) spares() int { return 0 }

// startCluster starts everything but the members, and submits the job: an example's program and its arguments, beside those that all are told.
func (p place) startCluster(ctx context.Context, mib, size int, program ...string) (_ *cluster, err error) {
	c := &cluster{place: p, pending: make(chan *corev1.Pod, 100), operatorEnd: make(chan struct{}), stopped: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stop())
		}
	}()
	for name, pkg := range map[string]string{"operator": "./cmd/operator", "agent": "./cmd/agent"} {
		if err := c.build(ctx, name, pkg); err != nil {
			return nil, err
		}
	}
	c.environment = apiserver.Environment(filepath.Join(c.Cache, "bin"),
		filepath.Join(c.Checkout, "config", "crd", "bases"), filepath.Join(c.Cache, "bin", "podgroups.yaml"))
	config, err := c.environment.Start()
	if err != nil {
		return nil, fmt.Errorf("start etcd and kube-apiserver (built by: go run ./hack/cluster build etcd kube-apiserver podgroups.yaml): %w", err)
	}
	if err := c.prepare(ctx, config); err != nil {
		return nil, err
	}
	if err := c.startOperator(); err != nil {
		return nil, err
	}
	if err := c.play(); err != nil {
		return nil, err
	}
	job, err := c.job(mib, size, program)
	if err != nil {
		return nil, err
	}
	return c, c.client.Create(ctx, job)
}

// build builds a program as `make build` does, to where members see it.
func (c *cluster) build(ctx context.Context, name, pkg string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", c.path(name), pkg)
	cmd.Dir, cmd.Env = c.Checkout, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the %s: %w\n%s", name, err, text)
	}
	return nil
}

// prepare makes what the operator and its job find in a cluster.
func (c *cluster) prepare(ctx context.Context, config *rest.Config) error {
	var err error
	if c.client, c.core, err = apiserver.Furnish(ctx, config); err != nil {
		return err
	}
	if err := apiserver.Create(ctx, c.client,
		&schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: "concertina-growth"}, Value: -1000, PreemptionPolicy: ptr.To(corev1.PreemptNever),
		},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: jobNamespace}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: jobNamespace, Name: "default"}},
	); err != nil {
		return err
	}
	for i := range nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}}
		if err := apiserver.Create(ctx, c.client, node); err != nil {
			return err
		}
		if err := c.furnish(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

// furnish makes a node ready, with room for one member.
func (c *cluster) furnish(ctx context.Context, node *corev1.Node) error {
	node.Status.Capacity = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods: resource.MustParse("1"), corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
	}
	node.Status.Allocatable = node.Status.Capacity
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := c.client.Status().Update(ctx, node); err != nil {
		return fmt.Errorf("make node %s ready: %w", node.Name, err)
	}
	return nil
}

// startOperator starts the operator as the chart does, but on ports of 127.0.0.1, and leads members there.
func (c *cluster) startOperator() error {
	user, err := c.environment.AddUser(envtest.User{Name: "bench-operator", Groups: []string{apiserver.Controllers}}, &rest.Config{QPS: -1})
	if err != nil {
		return fmt.Errorf("make a certificate for the operator: %w", err)
	}
	text, err := user.KubeConfig()
	if err != nil {
		return fmt.Errorf("write the operator's kubeconfig: %w", err)
	}
	// Members are of another user, which may not read it.
	kubeconfig := c.path("operator.kubeconfig")
	if err := os.WriteFile(kubeconfig, text, 0o600); err != nil {
		return fmt.Errorf("write the operator's kubeconfig: %w", err)
	}
	address, err := apiserver.FreeAddress()
	if err != nil {
		return err
	}
	output, err := os.Create(c.path("operator.log"))
	if err != nil {
		return err
	}
	defer func() { _ = output.Close() }()
	c.operator = exec.Command(c.path("operator"),
		"--namespace="+apiserver.SystemNamespace,
		// An EndpointSlice may not hold an address of the loopback.
		"--pod-ip=192.0.2.1",
		"--agent-image=localhost/concertina-agent:dev", "--uploader-image=localhost/concertina-uploader:dev",
		"--rendezvous-service="+apiserver.RendezvousService, "--rendezvous-bind-address="+address,
		"--metrics-bind-address=0", "--health-probe-bind-address=0", "--leader-elect")
	c.operator.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	c.operator.Stdout, c.operator.Stderr = output, output
	c.operator.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.operator.Start(); err != nil {
		return fmt.Errorf("start the operator: %w", err)
	}
	go func() {
		_ = c.operator.Wait()
		close(c.operatorEnd)
	}()
	return nil
}

// job is that of the example, which trains for as long as it takes.
func (c *cluster) job(mib, size int, program []string) (*v1alpha1.TrainingJob, error) {
	job, err := kube.ReadJob(filepath.Join(c.Checkout, "examples", "pytorch-digits", "job.yaml"))
	if err != nil {
		return nil, err
	}
	job.Namespace = jobNamespace
	job.Spec.Workers.Min, job.Spec.Workers.Max = ptr.To(int32(size-1)), ptr.To(int32(size))
	job.Spec.Failure.MaxRestarts = ptr.To[int32](1000)
	job.Spec.Checkpoint.Memory = v1alpha1.MemorySize(fmt.Sprintf("%dMi", 5*mib))
	job.Spec.Checkpoint.MemoryInterval = c.SnapshotEvery
	trainer := &job.Spec.Workers.Template.Spec.Containers[0]
	trainer.Command = slices.Concat([]string{"python3", source + "/examples/pytorch-digits/" + program[0]}, program[1:], trainingFlags(mib))
	trainer.Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}}
	return job, nil
}

// all are the members that were started and have not ended.
func (c *cluster) all() []*member {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = slices.DeleteFunc(c.running, (*member).over)
	return slices.Clone(c.running)
}

// situation is what the job's status says, for an error.
func (c *cluster) situation(ctx context.Context) string {
	var jobs v1alpha1.TrainingJobList
	if err := c.client.List(ctx, &jobs, client.InNamespace(jobNamespace)); err != nil {
		return err.Error()
	}
	var said []string
	for _, job := range jobs.Items {
		for _, condition := range job.Status.Conditions {
			said = append(said, fmt.Sprintf("%s %s: %s", condition.Type, condition.Status, condition.Message))
		}
	}
	return strings.Join(said, "; ")
}

func (c *cluster) operatorSaid() string {
	text, err := os.ReadFile(c.path("operator.log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// stop ends the operator, then the API server. The members have ended before.
func (c *cluster) stop() error {
	c.stopped()
	c.playing.Wait()
	var errs []error
	if c.operator != nil && c.operator.Process != nil {
		_ = c.operator.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-c.operatorEnd:
		case <-time.After(endPatience):
			errs = append(errs, errors.New("the operator did not end and was killed"))
			_ = c.operator.Process.Kill()
			<-c.operatorEnd
		}
	}
	if c.environment != nil {
		errs = append(errs, c.environment.Stop())
	}
	return errors.Join(errs...)
}
