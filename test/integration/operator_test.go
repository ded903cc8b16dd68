package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/controller"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/gang"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// operator is one life of the controller, for one namespace.
type operator struct {
	*journal
	worlds *worlds
	clock  *clock
	events *recorder
	fleet  *fleet.Cluster
	looks  *looks
	// cached is what it knows of the cluster.
	cached client.Reader
	stop   func()
}

// hasSeen waits until the operator knows a pod as it is: a clock that is moved before has it decide on what was.
func (o *operator) hasSeen(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		var known corev1.Pod
		g.Expect(o.cached.Get(ctx, client.ObjectKeyFromObject(pod), &known)).To(Succeed())
		g.Expect(known.ResourceVersion).To(Equal(pod.ResourceVersion))
	}).Should(Succeed())
}

// settings change an operator before it starts.
type settings struct {
	clock     *clock
	killAfter int
	// stale has the cache show no pods while it returns true.
	stale func() bool
	// drainTaints are keys of taints that ask workers to leave.
	drainTaints []string
	// lags has the cache show a job as it was when this first returned true, as long as it does.
	lags func() bool
	// before is the operator that led before this one; nil for none that matters.
	before *operator
	// answer is asked before each write, told when a gang is expected; nil for nobody.
	answer func(ctx context.Context, line string) error
	told   func(job rendezvous.JobKey, gang rendezvous.Gang)
	// bundle is what agents trust the operator by; nil for a constant.
	bundle func() []byte
}

// startOperator runs the controller and the planner as cmd/operator does, with their caches and queue,
// until the test ends or it is stopped. Of the cluster it knows one namespace, and all nodes.
func startOperator(ctx context.Context, namespace string, with settings) *operator {
	GinkgoHelper()
	j := &journal{killAfter: with.killAfter, before: with.answer}
	op := &operator{journal: j, worlds: newWorlds(j, with.before), clock: with.clock, events: &recorder{journal: j}}
	op.worlds.told = with.told
	if op.clock == nil {
		op.clock = &clock{}
	}
	if with.bundle == nil {
		with.bundle = func() []byte { return []byte("-----BEGIN CERTIFICATE-----") }
	}
	born := &births{at: map[types.UID]time.Time{}}
	funcs := j.intercept()
	create := funcs.Create
	funcs.Create = func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
		asked := op.clock.now()
		defer func() { born.made(object, asked) }()
		return create(ctx, c, object, opts...)
	}
	funcs.List = func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if _, pods := list.(*corev1.PodList); pods && with.stale != nil && with.stale() {
			return nil
		}
		err := c.List(ctx, list, opts...)
		born.correct(list)
		return err
	}
	if with.lags != nil {
		funcs.Get = lagging(with.lags)
	}
	mgr, err := ctrl.NewManager(restConfig, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{
			DefaultNamespaces: map[string]cache.Config{namespace: {}},
			ByObject:          map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: controller.SlimPod}},
		},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
		Client:     client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&schedv1alpha1.PodGroup{}}}},
		NewClient: func(config *rest.Config, options client.Options) (client.Client, error) {
			c, err := client.NewWithWatch(config, options)
			return interceptor.NewClient(c, funcs), err
		},
	})
	Expect(err).NotTo(HaveOccurred())
	shared, err := fleet.ParseSettings(nil)
	Expect(err).NotTo(HaveOccurred())
	pods := controller.PodSettings{AgentImage: "agent", RendezvousAddress: "rendezvous.concertina-system.svc:8443"}
	op.fleet = fleet.New(fleet.Options{
		Settings: shared, DrainTaints: with.drainTaints, Shapes: controller.Shapes(pods), AsksFirst: true, Plan: allocation.NewPlan, Now: op.clock.now,
	})
	Expect(op.fleet.AddTo(mgr, func(options *cache.Options) {
		options.DefaultNamespaces = map[string]cache.Config{namespace: {}}
	})).To(Succeed())
	op.clock.watch(op.fleet)
	op.looks = &looks{Fleet: op.fleet, at: map[types.UID]int{}}
	reconciler := &controller.Reconciler{
		Client:      mgr.GetClient(),
		Fleet:       op.looks,
		DrainTaints: with.drainTaints,
		Live:        reader{mgr.GetAPIReader(), born},
		Gang:        gang.Coscheduling{Client: mgr.GetClient()},
		Rendezvous:  op.worlds,
		Events:      op.events,
		CABundle:    with.bundle,
		Now:         op.clock.now,
		Pods:        pods,
		AsksFirst:   true,

		ReclaimTimeout: shared.ReclaimTimeout.Duration,
	}
	op.cached = mgr.GetClient()
	Expect(reconciler.SetupWithManager(mgr)).To(Succeed())
	DeferCleanup(func() {
		if CurrentSpecReport().Failed() {
			GinkgoWriter.Printf("journal of an operator:\n  %s\n", strings.Join(j.all(), "\n  "))
		}
	})
	op.run(ctx, mgr)
	return op
}

// lagging answers reads of a job from the past while lags returns true.
func lagging(lags func() bool) func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
	var mu sync.Mutex
	past := map[client.ObjectKey]*v1alpha1.TrainingJob{}
	return func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
		err := c.Get(ctx, key, object, opts...)
		job, ok := object.(*v1alpha1.TrainingJob)
		if err != nil || !ok {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if !lags() || past[key] == nil {
			past[key] = job.DeepCopy()
			return nil
		}
		past[key].DeepCopyInto(job)
		return nil
	}
}

// run starts the manager; stop ends it and waits for it. A killed operator has stopped writing
// already, so its way out does nothing.
func (o *operator) run(ctx context.Context, mgr ctrl.Manager) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	var once sync.Once
	o.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				Fail(fmt.Sprintf("the manager ended with %v", err))
			}
		})
	}
	DeferCleanup(o.stop)
}

// look has the controller look at a job once more. It returns when a whole round that began after
// the call is over: rounds of one job follow each other, so of three more that have looked, the
// first may have begun before, and the second is over.
func (o *operator) look(j *job) {
	GinkgoHelper()
	uid := j.get(context.Background()).UID
	for range 3 {
		looks := o.looks.of(uid)
		o.worlds.changed <- j.key()
		Eventually(o.looks.of).WithArguments(uid).Should(BeNumerically(">", looks))
	}
}

// looks counts how often the controller has looked at each job: it asks for the grant once, when it begins. The rendezvous is
// asked at other times too.
type looks struct {
	fleet.Fleet

	mu sync.Mutex
	at map[types.UID]int
}

// Grant implements fleet.Fleet.
func (l *looks) Grant(job types.UID) fleet.Grant {
	l.mu.Lock()
	l.at[job]++
	l.mu.Unlock()
	return l.Fleet.Grant(job)
}

func (l *looks) of(job types.UID) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at[job]
}

// clock is a wall clock that a test can set forward or stop.
type clock struct {
	mu      sync.Mutex
	offset  time.Duration
	stopped time.Time
	// planner is who plans by this clock now.
	planner *fleet.Cluster
}

// watch has somebody plan anew whenever the clock jumps: the timer by which it would is no part of the clock.
func (c *clock) watch(planner *fleet.Cluster) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.planner = planner
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped.IsZero() {
		return c.stopped.Add(c.offset)
	}
	return time.Now().Add(c.offset)
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	c.offset += d
	planner := c.planner
	c.mu.Unlock()
	planner.PlanNow()
}

// stoppedClock stands still: nothing that is due later ever comes due.
func stoppedClock() *clock { return &clock{stopped: time.Now()} }

// goOn has a clock that stood still go on from there.
func (c *clock) goOn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset, c.stopped = c.offset-time.Since(c.stopped), time.Time{}
}

// recorder notes events in the journal, in their order among the writes.
type recorder struct{ journal *journal }

var _ events.EventRecorder = (*recorder)(nil)

// Eventf implements events.EventRecorder.
func (r *recorder) Eventf(_, _ runtime.Object, eventType, reason, _, note string, args ...any) {
	r.journal.add("event %s %s: %s", eventType, reason, fmt.Sprintf(note, args...))
}
