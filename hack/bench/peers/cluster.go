package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/demo/kube"
	"github.com/concertina-dev/concertina/internal/identity"
)

const (
	systemNamespace, jobNamespace = "concertina-system", "bench"
	rendezvousService             = "concertina-rendezvous"
	// startPatience is how long each step of the start may take on a busy machine, endPatience how long a process may
	// take to end.
	startPatience, endPatience = 2 * time.Minute, 20 * time.Second
	// nodes are more than there are members: a node is avoided for a while after one was lost there.
	nodes = 12
	// relist is how often a kubelet looks at its containers: so late it may tell that one has ended.
	relist = time.Second
)

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
	playing sync.WaitGroup
}

func (*cluster) spares() int { return 0 }

// startCluster starts everything but the members, and submits the job.
func (p place) startCluster(ctx context.Context, mib int) (_ *cluster, err error) {
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
	c.environment = &envtest.Environment{
		BinaryAssetsDirectory: filepath.Join(c.Cache, "bin"), ErrorIfCRDPathMissing: true,
		CRDDirectoryPaths:        []string{filepath.Join(c.Checkout, "config", "crd", "bases"), filepath.Join(c.Cache, "bin", "podgroups.yaml")},
		ControlPlaneStartTimeout: startPatience, ControlPlaneStopTimeout: startPatience,
	}
	c.environment.CRDInstallOptions.MaxTime = startPatience
	// Nobody is there who would take the taint of a new node away again.
	c.environment.ControlPlane.GetAPIServer().Configure().Set("disable-admission-plugins", "TaintNodesByCondition")
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
	job, err := c.job(mib)
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
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	config.QPS = -1
	var err error
	if c.client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if c.core, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	objects := []client.Object{
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "bench-operator"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "bench:operator"}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: systemNamespace}},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: rendezvousService},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "rendezvous", Port: 8443}}},
		},
		&schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: "concertina-growth"}, Value: -1000, PreemptionPolicy: ptr.To(corev1.PreemptNever),
		},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: jobNamespace}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: jobNamespace, Name: "default"}},
	}
	for i := range nodes {
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}})
	}
	for _, object := range objects {
		if err := c.client.Create(ctx, object); err != nil {
			return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
		}
		if node, ok := object.(*corev1.Node); ok {
			if err := c.furnish(ctx, node); err != nil {
				return err
			}
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
	user, err := c.environment.AddUser(envtest.User{Name: "bench-operator", Groups: []string{"bench:operator"}}, &rest.Config{QPS: -1})
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
	address, err := freeAddress()
	if err != nil {
		return err
	}
	output, err := os.Create(c.path("operator.log"))
	if err != nil {
		return err
	}
	defer func() { _ = output.Close() }()
	c.operator = exec.Command(c.path("operator"),
		"--namespace="+systemNamespace,
		// An EndpointSlice may not hold an address of the loopback.
		"--pod-ip=192.0.2.1",
		"--agent-image=localhost/concertina-agent:dev", "--uploader-image=localhost/concertina-uploader:dev",
		"--rendezvous-service="+rendezvousService, "--rendezvous-bind-address="+address,
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
func (c *cluster) job(mib int) (*v1alpha1.TrainingJob, error) {
	job, err := kube.ReadJob(filepath.Join(c.Checkout, "examples", "pytorch-digits", "job.yaml"))
	if err != nil {
		return nil, err
	}
	job.Namespace = jobNamespace
	job.Spec.Workers.Min, job.Spec.Workers.Max = ptr.To[int32](size-1), ptr.To[int32](size)
	job.Spec.Failure.MaxRestarts = ptr.To[int32](1000)
	job.Spec.Checkpoint.Memory = resource.NewQuantity(int64(5*mib)<<20, resource.BinarySI)
	trainer := &job.Spec.Workers.Template.Spec.Containers[0]
	trainer.Command = append([]string{"python3", source + "/examples/pytorch-digits/train.py"}, trainingFlags(mib)...)
	trainer.Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}}
	return job, nil
}

// play begins to play scheduler and kubelets.
func (c *cluster) play() error {
	ctx, stop := context.WithCancel(context.Background())
	c.stopped = stop
	pods, err := c.core.CoreV1().Pods(jobNamespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watch the pods: %w", err)
	}
	c.playing.Go(func() {
		seen := map[string]bool{}
		for event := range pods.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			switch {
			case !ok:
			case pod.DeletionTimestamp != nil:
				// Its program has ended, or is ended with the contender.
				_ = c.core.CoreV1().Pods(jobNamespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
			case !seen[pod.Name] && len(pod.Spec.SchedulingGates) == 0:
				seen[pod.Name] = true
				c.pending <- pod
			}
		}
	})
	return nil
}

// add starts the next pod that waits for a node.
func (c *cluster) add(ctx context.Context) (*member, error) {
	patience := time.After(patience)
	for {
		select {
		case pod := <-c.pending:
			m, err := c.run(ctx, pod)
			if client.IgnoreNotFound(err) == nil && err != nil {
				continue // the operator has thought otherwise meanwhile
			}
			return m, err
		case <-c.operatorEnd:
			return nil, fmt.Errorf("the operator has ended (%s):\n%s", c.operator.ProcessState, c.operatorSaid())
		case <-patience:
			return nil, fmt.Errorf("no pod waits for a node; the job: %s\n%s", c.situation(ctx), c.operatorSaid())
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// run binds a pod to its node and starts its training container.
func (c *cluster) run(ctx context.Context, pod *corev1.Pod) (*member, error) {
	node := pinned(pod)
	if node == "" {
		return nil, fmt.Errorf("pod %s demands no node", pod.Name)
	}
	pods := c.core.CoreV1().Pods(pod.Namespace)
	if err := pods.Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	token, err := c.core.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, "default", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{identity.Audience}, ExpirationSeconds: ptr.To[int64](3600),
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(
		os.WriteFile(c.path(pod.Name+".token"), []byte(token.Status.Token), 0o644),
		os.WriteFile(c.path(pod.Name+".ca"), []byte(pod.Annotations[v1alpha1.AnnotationCABundle]), 0o644),
	); err != nil {
		return nil, fmt.Errorf("write the identity of pod %s: %w", pod.Name, err)
	}
	c.started++
	// Each pod has an address of its own, as agents have the same ports.
	pod.Status.PodIP = net.IPv4(127, 0, 1, byte(c.started)).String()
	m, err := c.start(pod.Name, agentEnvironment(pod), agentCommand(pod)...)
	if err != nil {
		return nil, err
	}
	c.playing.Go(func() { c.tell(pod, m) })
	return m, nil
}

// tell writes of a pod that its container runs, and later that it has ended.
func (c *cluster) tell(pod *corev1.Pod, m *member) {
	write := func(phase corev1.PodPhase, state corev1.ContainerState) {
		pod := pod.DeepCopy()
		pod.ResourceVersion = "" // whatever else has changed meanwhile
		pod.Status.Phase, pod.Status.PodIPs = phase, []corev1.PodIP{{IP: pod.Status.PodIP}}
		container := pod.Spec.Containers[0]
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: container.Name, Image: container.Image, State: state}}
		// A pod that is gone needs no status.
		_, _ = c.core.CoreV1().Pods(pod.Namespace).UpdateStatus(context.Background(), pod, metav1.UpdateOptions{})
	}
	write(corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}})
	<-m.ended
	time.Sleep(relist)
	code := int32(m.cmd.ProcessState.ExitCode())
	if status, ok := m.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = 128 + int32(status.Signal())
	}
	phase := corev1.PodFailed
	if code == 0 {
		phase = corev1.PodSucceeded
	}
	write(phase, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.Now()}})
}

// agentEnvironment are the variables of a pod's training container, as a kubelet would work them out; files that are
// written lie in /tmp, which is each member's own and in memory.
func agentEnvironment(pod *corev1.Pod) []string {
	fields := map[string]string{"metadata.name": pod.Name, "metadata.uid": string(pod.UID), "status.podIP": pod.Status.PodIP}
	replaced := map[string]string{"CONCERTINA_SOCKET": "/tmp/run/agent.sock", "CONCERTINA_MEMORY": "/tmp/memory"}
	var all []string
	for _, variable := range pod.Spec.Containers[0].Env {
		value := variable.Value
		if variable.ValueFrom != nil {
			value = fields[variable.ValueFrom.FieldRef.FieldPath]
		}
		if other, ok := replaced[variable.Name]; ok {
			value = other
		}
		all = append(all, variable.Name+"="+value)
	}
	return all
}

// agentCommand is the command of a pod's training container, with the paths that the agent has here.
func agentCommand(pod *corev1.Pod) []string {
	file := filepath.Join(inside, pod.Name)
	command := []string{
		"/bin/sh", "-c", `mkdir /tmp/run /tmp/memory && exec "$@"`, "sh",
		filepath.Join(inside, "agent"), "run", "--token-file", file + ".token", "--ca-file", file + ".ca",
	}
	return append(command, pod.Spec.Containers[0].Command[2:]...)
}

// pinned is the node that a pod demands by name.
func pinned(pod *corev1.Pod) string {
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == "metadata.name" && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
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

// freeAddress is an address of 127.0.0.1 on which nobody listens now.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return listener.Addr().String(), listener.Close()
}
