package controller

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
)

// fleetSim is a cluster with many jobs, in which the operator's own code runs: the reconciler, the handlers
// that wake it, the fleet and its planner. Everything around it is made up, and time is that of a synctest
// bubble. Nothing looks at the jobs but what the operator itself has asked for, so a wake-up that is lost
// shows as a job that stands still.
//
//	fleetsimulation_test.go            the phases of a run
//	fleetsimulation_server_test.go     the API server, admission, quotas
//	fleetsimulation_client_test.go     its client, with faults
//	fleetsimulation_operator_test.go   one life of the operator: caches, queue, crash
//	fleetsimulation_scheduler_test.go  the scheduler
//	fleetsimulation_kubelet_test.go    nodes, and the pods that run there
//	fleetsimulation_rendezvous_test.go what an operator is told of worlds
//	fleetsimulation_worlds_test.go     the worlds and the training
//	fleetsimulation_users_test.go      users and accidents
//	fleetsimulation_bad_test.go        what nobody should do
//	fleetsimulation_checks_test.go     what must hold
//	fleetsimulation_crash_test.go      one reclaim, with a crash at each of its writes
//	worldsimulation_test.go            the same with the real rendezvous and the real agents
type fleetSim struct {
	t    *testing.T
	seed uint64

	mu        sync.Mutex
	dice      *rand.Rand
	ticks     int
	over      bool
	violation string
	log       []string
	counts    map[string]int

	scheme    *runtime.Scheme
	settings  fleet.Settings
	server    *simServer
	scheduler *simScheduler
	kubelets  *simKubelets
	worlds    map[types.NamespacedName]*simWorld
	operator  *simOperator
	lives     int

	// chaos is true while things go wrong. hold keeps programs from their last step.
	chaos, hold bool
	calmSince   time.Time
	// crashAt is the write at which the operator crashes, 0 for none.
	crashAt, writes int
	timedOut        time.Time
	born            int
	lengths         map[types.UID]float64
	foreign, scaled map[types.UID]bool
	// stepTimes are how long steps of jobs take with so many workers, where they are not as many as workers. paced is true
	// where programs tell how far they are, noise by what part what they tell of their steps is off at most.
	stepTimes map[types.UID]func(workers int) float64
	paced     bool
	noise     float64
	// pause is how long a change of a world stops its program at most, warmUp how long a program takes at most from its first
	// world to its first step.
	pause, warmUp time.Duration
	watch         simWatch

	plans, looks atomic.Int64

	// training is what runs in the pods, and what operators know of it, where that is the real code; nil where it
	// is made up.
	training *simTraining
}

// simPriorities are the PriorityClasses that there are.
var simPriorities = map[string]int32{"concertina-growth": -10, "low": 0, "mid": 100, "high": 1000, "urgent": 5000}

// simDevice is what the nodes of the simulation run out of.
const simDevice corev1.ResourceName = "example.com/gpu"

func simResources(devices, cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{simDevice: resource.MustParse(devices), corev1.ResourceCPU: resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse(memory + "Gi"), corev1.ResourcePods: resource.MustParse("110")}
}

func newFleetSim(t *testing.T, seed uint64) *fleetSim {
	s := &fleetSim{
		t: t, seed: seed, dice: rand.New(rand.NewPCG(seed, 7)), counts: map[string]int{}, scheme: runtime.NewScheme(),
		worlds: map[types.NamespacedName]*simWorld{}, lengths: map[types.UID]float64{}, foreign: map[types.UID]bool{}, scaled: map[types.UID]bool{},
		stepTimes: map[types.UID]func(int) float64{}, noise: 0.05,
		pause: 5 * time.Second,
	}
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, schedv1alpha1.AddToScheme} {
		if err := add(s.scheme); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if s.settings, err = fleet.ParseSettings(nil); err != nil {
		t.Fatal(err)
	}
	s.server = &simServer{sim: s, objects: newSimObjects(), names: map[string]bool{}}
	s.scheduler = &simScheduler{sim: s, parked: map[types.UID]simParked{}, assumed: map[types.UID]string{}}
	s.kubelets = &simKubelets{sim: s, agents: map[types.UID]bool{}, released: map[types.UID]bool{}}
	s.watch = newSimWatch()
	s.server.watches = append(s.server.watches, s.see)
	for name, value := range simPriorities {
		s.server.objects[simClass][types.NamespacedName{Name: name}] = &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1", UID: types.UID(name)}, Value: value}
	}
	s.server.version = 1
	return s
}

// see has the players of the cluster see a change at once: how long they take is their own affair.
func (s *fleetSim) see(kind simKind, before, after client.Object) {
	s.scheduler.notice(kind, before, after)
	switch kind {
	case simPod:
		was, _ := before.(*corev1.Pod)
		pod, _ := after.(*corev1.Pod)
		s.kubelets.notice(was, pod)
		s.noticeRoom(was, pod)
		some := pod
		if some == nil {
			some = was
		}
		if ofOperator(some) {
			s.touch(jobOf(some))
		}
		if was != nil && (pod == nil || podEnded(pod)) && len(s.server.objects[simQuota]) > 0 {
			s.after(s.span(10*time.Millisecond, 3*time.Second), s.server.recount)
		}
	case simJob:
		if s.training != nil {
			s.training.history.recorded(before, after)
		}
		if after == nil {
			s.after(s.span(10*time.Millisecond, 2*time.Second), func() { s.server.collectGarbage(before.GetUID()) })
		}
	}
}

// after has something happen, under the lock. No two things happen at the same time.
func (s *fleetSim) after(d time.Duration, do func()) {
	s.ticks++
	at := time.Now().Add(d).Truncate(100 * time.Microsecond).Add(time.Duration(s.ticks%99_991) * time.Nanosecond)
	time.AfterFunc(max(time.Until(at), time.Nanosecond), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.over {
			do()
		}
	})
}

// span is a time between two, mostly nearer to the first.
func (s *fleetSim) span(least, most time.Duration) time.Duration {
	x := s.dice.Float64()
	return least + time.Duration(x*x*x*float64(most-least))
}

func (s *fleetSim) chance(p float64) bool { return s.dice.Float64() < p }

// lag is how long it takes until a watch tells of a change.
func (s *fleetSim) lag() time.Duration {
	if s.chaos && s.chance(0.01) {
		return s.span(100*time.Millisecond, 4*time.Second)
	}
	return s.span(time.Millisecond, 40*time.Millisecond)
}

func (s *fleetSim) say(format string, args ...any) {
	if len(s.log) > 20000 {
		s.log = slices.Clone(s.log[10000:])
	}
	s.log = append(s.log, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// fail notes the first thing that should not be.
func (s *fleetSim) fail(format string, args ...any) {
	if s.violation == "" {
		s.violation = fmt.Sprintf(format, args...)
		s.say("VIOLATION: %s", s.violation)
		s.say("%s", s.describe())
	}
}

func (s *fleetSim) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.violation != ""
}

// pass lets time go by, and looks at the cluster once in a while. It says whether all is well so far.
func (s *fleetSim) pass(d time.Duration, enough func() bool) bool {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(time.Second + 77*time.Nanosecond)
		s.mu.Lock()
		if s.server.version != s.watch.version || time.Since(s.watch.at) > 5*time.Second {
			s.watch.version, s.watch.at = s.server.version, time.Now()
			s.checkNow()
		}
		failed, done := s.violation != "", enough != nil && enough()
		s.mu.Unlock()
		if failed || done {
			return !failed
		}
	}
	return true
}

// do does something to the cluster.
func (s *fleetSim) do(what func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	what()
}

// stop ends everything, and waits for what runs.
func (s *fleetSim) stop() {
	var last *simOperator
	s.do(func() { s.over = true; s.stopOperator(); last = s.operator })
	if last != nil {
		last.running.Wait()
	}
	if s.violation != "" || os.Getenv("FLEET_SIMULATION_LINES") != "" && s.training != nil {
		if s.violation != "" {
			s.t.Errorf("seed %d: %s", s.seed, s.violation)
		}
		lines := s.log[max(0, len(s.log)-linesShown()):]
		s.t.Log("what happened last:\n" + strings.Join(lines, "\n"))
	}
}

func linesShown() int {
	if n, err := strconv.Atoi(os.Getenv("FLEET_SIMULATION_LINES")); err == nil {
		return n
	}
	return 60
}

// simSorted are the objects of one kind, by name.
func simSorted[T client.Object](all map[types.NamespacedName]client.Object) []T {
	keys := slices.SortedFunc(maps.Keys(all), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	some := make([]T, 0, len(keys))
	for _, key := range keys {
		some = append(some, all[key].(T))
	}
	return some
}

// live runs one cluster from its beginning until all of its jobs have ended.
func (s *fleetSim) live() {
	defer s.stop()
	var chaos time.Duration
	s.do(func() {
		chaos = s.span(10*time.Minute, 30*time.Minute)
		s.build()
		s.startOperator()
		s.chaos = true
		s.arrivals()
		s.accidents()
	})
	if !s.pass(chaos, nil) {
		return
	}
	s.do(s.calmDown)
	if !s.reports() && !s.rest() {
		return
	}
	ended := func() bool { return s.unfinished() == "" }
	if !s.pass(4*time.Hour, ended) {
		return
	}
	s.do(func() {
		if left := s.unfinished(); left != "" {
			s.fail("what fits an empty cluster has not ended after hours of calm: %s", left)
		}
	})
	s.quiet("all jobs have ended")
}

// rest has all jobs train on without an end, until nothing more should change, and then nothing does.
func (s *fleetSim) rest() bool {
	s.do(func() { s.endless(true) })
	if !s.pass(30*time.Minute, nil) {
		return false
	}
	s.do(s.checkGrown)
	if !s.quiet("all jobs that have room train") {
		return false
	}
	s.do(func() { s.endless(false) })
	return true
}

// quiet checks that while nothing happens nothing is written.
func (s *fleetSim) quiet(why string) bool {
	const calm = 10 * time.Minute
	if !s.pass(5*time.Minute, nil) {
		return false
	}
	before := 0
	s.do(func() { before = s.writes; s.watch.written = map[string]int{} })
	if !s.pass(calm, nil) {
		return false
	}
	s.do(func() {
		if n := s.writes - before; n > 0 {
			s.fail("%s, and %d writes were made in %s: %v", why, n, calm, s.watch.written)
		}
	})
	return !s.failed()
}

// TestManyJobsWhateverHappens runs clusters from the same seeds for some seconds, or from random ones for as long as
// FLEET_SIMULATION says (a duration). FLEET_SIMULATION_SEED replays one.
func TestManyJobsWhateverHappens(t *testing.T) {
	budget := 12 * time.Second
	if text := os.Getenv("FLEET_SIMULATION"); text != "" {
		var err error
		if budget, err = time.ParseDuration(text); err != nil {
			t.Fatalf("FLEET_SIMULATION: %v", err)
		}
	}
	// The short run takes the same clusters each time: what it finds is what a change has brought.
	first, only := uint64(1), false
	if os.Getenv("FLEET_SIMULATION") != "" {
		first = uint64(time.Now().UnixNano() % 1_000_000_000)
	}
	if text := os.Getenv("FLEET_SIMULATION_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("FLEET_SIMULATION_SEED: %v", err)
		}
		first, only = seed, true
	}
	totals := map[string]int{}
	began := time.Now()
	clusters := 0
	for seed := first; time.Since(began) < budget && !t.Failed(); seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFleetSim(t, seed)
				begin := time.Now()
				s.live()
				for what, n := range s.counts {
					totals[what] += n
				}
				totals["plans"] += int(s.plans.Load())
				totals["looks"] += int(s.looks.Load())
				totals["writes"] += s.writes
				totals["events"] += s.ticks
				totals["virtual minutes"] += int(time.Since(begin) / time.Minute)
			})
		})
		clusters++
		if only {
			break
		}
	}
	t.Logf("%d clusters from seed %d on, in %s: %v", clusters, first, time.Since(began).Round(time.Millisecond), totals)
}
