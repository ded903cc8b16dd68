package scale

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/bench/apiserver"
)

const (
	// operatorUser is the name that the audit log knows the operator by.
	operatorUser = "bench-operator"
	// controllerName is the operator's controller in its own metrics.
	controllerName = "trainingjob"
	// quiet is for how long there must be nothing to do before the first look is over.
	quiet = time.Second
	// lookEvery is how often the metrics page says so. The operator's own time goes into a page of thousands of jobs: asked for
	// twenty times a second it was most of what a cold start cost.
	lookEvery = 500 * time.Millisecond
)

// operator is a running operator.
type operator struct {
	*process
	metrics string
	begin   time.Time
}

// definitions are the kinds that the operator knows.
func (b Bench) definitions(ctx context.Context) ([]string, error) {
	plugins, err := b.moduleDir(ctx, ".", "sigs.k8s.io/scheduler-plugins")
	if err != nil {
		return nil, err
	}
	return []string{
		filepath.Join(b.Checkout, "config", "crd", "bases"),
		filepath.Join(plugins, "config", "crd", "bases", "scheduling.x-k8s.io_podgroups.yaml"),
	}, nil
}

// startOperator starts the program as the chart does, but on ports of 127.0.0.1.
func startOperator(s *server, path, name string) (*operator, error) {
	kubeconfig, err := s.kubeconfig(operatorUser)
	if err != nil {
		return nil, err
	}
	// A second life has the ports of the first, as a Service keeps its: messages that agents cannot reach them name one.
	if s.operator == nil {
		if s.operator, err = freeAddresses(4); err != nil {
			return nil, err
		}
	}
	ports := s.operator
	o := &operator{metrics: ports[0], begin: time.Now()}
	o.process, err = startProcess(s.dir, name, path, []string{"KUBECONFIG=" + kubeconfig},
		"--namespace="+apiserver.SystemNamespace,
		// No agent ever connects. An EndpointSlice may not hold an address of the loopback.
		"--pod-ip=192.0.2.1",
		"--agent-image=localhost/concertina-agent:dev",
		"--uploader-image=localhost/concertina-uploader:dev",
		"--rendezvous-service="+apiserver.RendezvousService,
		"--metrics-bind-address="+ports[0], "--health-probe-bind-address="+ports[1], "--rendezvous-bind-address="+ports[2],
		"--pprof-bind-address="+ports[3],
		"--leader-elect")
	return o, err
}

// firstLook waits until the operator leads and has looked at every job: as many looks as there are jobs
// are over, and then its queue was empty and nobody at work for a second. It returns how long after the
// start that second began.
func (o *operator) firstLook(ctx context.Context, jobs int, patience time.Duration) (took time.Duration, err error) {
	var since time.Time
	var looks float64
	err = poll(ctx, lookEvery, patience, "wait for the operator's first look at all jobs", func(ctx context.Context) (bool, error) {
		if err := o.alive(); err != nil {
			return false, err
		}
		now := time.Now()
		page, err := scrape(ctx, o.metrics)
		if err != nil {
			return false, ctx.Err() // it does not serve yet
		}
		before := looks
		looks = page.sum("controller_runtime_reconcile_total", "controller", controllerName)
		idle := page.sum("leader_election_master_status") > 0 &&
			looks >= float64(jobs) && looks == before &&
			page.sum("workqueue_depth", "name", controllerName) == 0 &&
			page.sum("controller_runtime_active_workers", "controller", controllerName) == 0
		switch {
		case !idle:
			since = time.Time{}
		case since.IsZero():
			since = now
		}
		return idle && now.Sub(since) >= quiet, nil
	})
	return since.Sub(o.begin), err
}

// reconcileP99 is how long the slowest of a hundred looks took.
func (o *operator) reconcileP99(ctx context.Context) (time.Duration, error) {
	page, err := scrape(ctx, o.metrics)
	if err != nil {
		return 0, err
	}
	seconds := page.quantile(0.99, "controller_runtime_reconcile_time_seconds", "controller", controllerName)
	return time.Duration(seconds * float64(time.Second)), nil
}

// trainingJob is a gang of so many workers with a device each. Its agents will never come: the time that
// it has for its start outlasts every bench.
func trainingJob(namespace, name string, workers int32) *v1alpha1.TrainingJob {
	job := &v1alpha1.TrainingJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	job.Spec.Workers.Min, job.Spec.Workers.Max = ptr.To(workers), ptr.To(workers)
	job.Spec.Gang.StartTimeout = &metav1.Duration{Duration: 168 * time.Hour}
	job.Spec.Workers.Template.Spec.Containers = []corev1.Container{plainContainer("trainer", 1)}
	return job
}

// submit creates jobs, many at a time, in so many namespaces in turn.
func (s *server) submit(ctx context.Context, jobs int, workers int32, teams []string) error {
	return each(ctx, jobs, func(ctx context.Context, i int) error {
		job := trainingJob(teams[i%len(teams)], fmt.Sprintf("job-%05d", i), workers)
		if err := s.client.Create(ctx, job); err != nil {
			return fmt.Errorf("submit %s: %w", job.Name, err)
		}
		return nil
	})
}
