package controller

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// simTraining is one job on a small cluster of the simulation of many, in which everything that decides is the code
// of the product: the reconciler and its planner, the writer of records, the machine of the rendezvous, and the
// machine of each agent. What is made up is what lies between them (the network, the API server, kubelets, and
// training programs), and all of it takes time, which is that of a synctest bubble.
//
//	worldsimulation_test.go            the phases of a run, what goes wrong
//	worldsimulation_rendezvous_test.go the operator's end: machines, sessions, writes
//	worldsimulation_agent_test.go      the worker's end: the agent
//	worldsimulation_program_test.go    its training process
//	worldsimulation_clocks_test.go     clocks that are wrong
//	worldsimulation_kills_test.go      a change, with a kill at each of its effects
//	worldsimulation_outages_test.go    an API server that is away, and partitions of worlds with long steps
//	worldsimulation_checks_test.go     what must hold
//	worldsimulation_recovery_test.go   what a recovery may lose
//	worldsimulation_spares_test.go     who trains, and who is a spare
type simTraining struct {
	*fleetSim
	job     types.NamespacedName
	agents  map[types.UID]*simAgent
	history simHistory
	// step is how long a step takes, lastStep how many there are. A snapshot is taken every memoryInterval steps.
	step                     time.Duration
	lastStep, memoryInterval uint64
	// spares is how many workers the job has beside those who train, most what max was from when on.
	spares int32
	most   []simMost
	// older is an operator that has not noticed yet that another leads; nil for none.
	older *simOperator
	// harmed is until when something may cost steps that was done, harms counts that, faults what a program may be
	// held to account for: to stand still counts as its fault.
	harmed        time.Time
	harms, faults int
	// silent is true while the API server answers nobody.
	silent bool
	// mute are the nodes whose agents no operator hears, deaf those whose agents hear none, and alone those that no other
	// node reaches.
	mute, deaf, alone map[string]bool
	// clocks are those of nodes and operators, timeless that they are wrong.
	clocks   map[string]*simClock
	timeless bool
	// effects are those that were counted while counting is true, killAt the one at which the operator dies.
	effects, killAt int
	counting        bool
}

func newSimTraining(t *testing.T, seed uint64) *simTraining {
	s := &simTraining{fleetSim: newFleetSim(t, seed), agents: map[types.UID]*simAgent{}, mute: map[string]bool{}, deaf: map[string]bool{}, alone: map[string]bool{}, clocks: map[string]*simClock{}}
	s.training, s.history = s, newSimHistory(s)
	return s
}

// delay is how long a message takes between an agent and an operator.
func (t *simTraining) delay() time.Duration {
	if t.unlucky(0.01) {
		return t.span(50*time.Millisecond, 5*time.Second)
	}
	return t.span(200*time.Microsecond, 20*time.Millisecond)
}

// unlucky is true once in a while, as long as things go wrong.
func (t *simTraining) unlucky(p float64) bool { return t.chaos && t.chance(p) }

// dial is the operator that an agent finds; nil for none.
func (t *simTraining) dial() *simOperator {
	if t.older != nil && !t.older.dead && t.chance(0.3) {
		return t.older
	}
	if t.operator == nil || t.operator.dead {
		return nil
	}
	return t.operator
}

// connects says whether an agent gets a connection to an operator, for which each must hear the other.
func (t *simTraining) connects(a *simAgent, op *simOperator) bool {
	return !op.dead && !t.mute[a.pod.Spec.NodeName] && !t.deaf[a.pod.Spec.NodeName]
}

// meet says whether two agents reach each other.
func (t *simTraining) meet(a, b *simAgent) bool {
	from, to := a.pod.Spec.NodeName, b.pod.Spec.NodeName
	return from == to || !t.alone[from] && !t.alone[to]
}

// ranks are the agents whose processes are in a round, by rank.
func (t *simTraining) ranks(round uint64) []*simAgent {
	var all []*simAgent
	for _, uid := range slices.Sorted(maps.Keys(t.agents)) {
		if a := t.agents[uid]; !a.ended && a.process.trains() && a.process.round == round {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, func(a, b *simAgent) int { return cmp.Compare(a.process.rank, b.process.rank) })
	return all
}

// exchange ends a step once all ranks have given their part of it to each other.
func (t *simTraining) exchange(round, step uint64) {
	ranks := t.ranks(round)
	given := 0
	for i, a := range ranks {
		if p := &a.process; p.rank == i && p.given && p.done == step-1 && t.meet(a, ranks[0]) {
			given++
		}
	}
	if given == 0 || given != ranks[0].process.workers || given != len(ranks) {
		return
	}
	t.history.step(round, step, ranks)
	for _, a := range ranks {
		a.endStep()
	}
}

// leaves is told of each process that leaves its world or ends: the exchange of the others may break, or hang.
func (t *simTraining) leaves(gone *simAgent) {
	round := gone.process.round
	for _, a := range t.ranks(round) {
		if a != gone && a.process.stepping && !a.process.ending && t.chance(0.7) {
			a.inStep(t.span(time.Millisecond, 3*time.Second), func() {
				if a.process.stepping && !a.process.ending && len(t.ranks(round)) < a.process.workers {
					a.fail("connection reset by peer")
				}
			})
		}
	}
}

// begin makes nodes and the job, and starts the operator.
func (t *simTraining) begin(least, most int32) {
	for i := range 3 {
		_ = t.server.create(nodeCalled(fmt.Sprintf("node-%d", i), "2"))
	}
	job := jobWith(func(j *v1alpha1.TrainingJob) {
		j.UID, j.ResourceVersion = "", ""
		j.Spec.Workers.Min, j.Spec.Workers.Max = ptr.To(least), ptr.To(most)
		if t.spares > 0 {
			j.Spec.Workers.Spares = ptr.To(t.spares)
		}
		j.Spec.Workers.Template.Spec.PriorityClassName = "mid"
		container := &j.Spec.Workers.Template.Spec.Containers[0]
		container.Resources = corev1.ResourceRequirements{Requests: simResources("1", "1", "1")}
		delete(container.Resources.Requests, corev1.ResourcePods)
		j.Spec.Resize.Strategy = v1alpha1.ResizeInPlace
		j.Spec.Growth.Policy = v1alpha1.GrowthAuto
		j.Spec.Growth.Stabilization = &metav1.Duration{Duration: 5 * time.Second}
		j.Spec.Failure.MaxRestarts = ptr.To[int32](1000)
		j.Spec.Failure.HangTimeout = &metav1.Duration{Duration: max(2*time.Minute, 5*t.step)}
		j.Spec.Gang.StartTimeout = &metav1.Duration{Duration: 3 * time.Minute}
		j.Spec.Checkpoint.Timeout = &metav1.Duration{Duration: max(time.Minute, 3*t.step)}
	})
	t.job = client.ObjectKeyFromObject(job)
	if err := t.server.create(job); err != nil {
		t.fail("submit: %v", err)
	}
	t.most = append(t.most, simMost{time.Now(), most})
	t.startOperator()
}

// now is the job as it is stored.
func (t *simTraining) now() *v1alpha1.TrainingJob { return t.server.job(t.job) }

// trainsWith says whether the world that makes steps has so many workers.
func (t *simTraining) trainsWith(workers int32) func() bool {
	return func() bool {
		r := t.history.record
		return r.Workers == workers && t.history.stepped == r.Round && r.Round > 0
	}
}

func (t *simTraining) complete() bool { return t.now() != nil && (&State{Job: t.now()}).finished() }

// await lets time pass until something is so.
func (t *simTraining) await(d time.Duration, what string, is func() bool) bool {
	if !t.pass(d, is) {
		return false
	}
	t.do(func() {
		if !is() {
			t.fail("in %s nothing came of it: %s", d, what)
		}
	})
	return !t.failed()
}

// scale changes how many workers the job wants.
func (t *simTraining) scale(most int32) {
	t.say("max is %d now", most)
	t.scaled[t.now().UID], t.most = true, append(t.most, simMost{time.Now(), most})
	t.edit(t.now(), func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Max = ptr.To(most) })
}

// walk has one job start, grow, shrink, outlive its operator, lose a worker, have a program killed, and end.
func (t *simTraining) walk() {
	defer t.stop()
	t.step, t.lastStep, t.memoryInterval = 500*time.Millisecond, 1500, 20
	t.do(func() { t.begin(2, 2) })
	if !t.await(5*time.Minute, "the gang trains", t.trainsWith(2)) {
		return
	}
	t.do(func() { t.scale(4) })
	if !t.await(5*time.Minute, "it grows", t.trainsWith(4)) {
		return
	}
	t.do(func() { t.scale(3) })
	if !t.await(5*time.Minute, "it shrinks", t.trainsWith(3)) {
		return
	}
	var round uint64
	steps := 0
	t.do(func() {
		round, steps = t.history.stepped, len(t.history.committed)
		t.stopOperator()
		t.after(2*time.Minute, t.takeOver)
	})
	if !t.pass(2*time.Minute, nil) {
		return
	}
	t.do(func() {
		if made := len(t.history.committed) - steps; made < 200 {
			t.fail("promise 8: %d steps were made in two minutes without an operator", made)
		}
	})
	if !t.pass(time.Minute, nil) {
		return
	}
	t.do(func() {
		if t.history.record.Round != round {
			t.fail("promise 8: the operator is back, and round %d has become round %d", round, t.history.record.Round)
		}
		if restarts := t.restarts(); restarts != 0 {
			t.fail("promise 9: %d restarts are counted, and nothing but planned changes was made", restarts)
		}
		t.harm(0, "%s ends without a word", t.workers()[1].Name)
		t.kubelets.exit(t.workers()[1], 137)
	})
	if !t.await(5*time.Minute, "it recovers", t.trainsWith(3)) || !t.pass(time.Minute, nil) {
		return
	}
	if !t.killOne() {
		return
	}
	t.await(2*time.Hour, "the job completes", t.complete)
}

// killOne has the process of one worker killed: it is back in its pod, with its snapshots, and nobody takes its place.
func (t *simTraining) killOne() bool {
	var before []types.UID
	var restarts int
	t.do(func() {
		for _, pod := range t.workers() {
			before = append(before, pod.UID)
		}
		restarts = t.restarts()
		t.harm(0, "the program of %s is killed", t.workers()[1].Name)
		t.agents[before[1]].exit(137)
	})
	if !t.await(time.Minute, "the others go on", t.trainsWith(2)) || !t.await(5*time.Minute, "it is back", t.trainsWith(3)) {
		return false
	}
	if !t.pass(time.Minute, nil) {
		return false
	}
	t.do(func() {
		var now []types.UID
		for _, pod := range t.workers() {
			now = append(now, pod.UID)
		}
		if !slices.Equal(now, before) {
			t.fail("a program was killed, and the workers were %v and are %v", before, now)
		}
		if more := t.restarts() - restarts; more != 1 {
			t.fail("a program was killed once, and %d restarts are counted", more)
		}
		if held := len(t.agents[before[1]].snapshots); held == 0 {
			t.fail("a program was killed, and its worker holds no snapshot any more")
		}
	})
	return true
}

// harm notes something that may cost steps for so long.
func (t *simTraining) harm(lasts time.Duration, format string, args ...any) {
	if until := time.Now().Add(lasts); until.After(t.harmed) {
		t.harmed = until
	}
	t.harms++
	t.say("HARM: "+format, args...)
}

// restarts is how many restarts the job has been charged with.
func (t *simTraining) restarts() int {
	return int(value(t.now().Status.Restarts.Program) + value(t.now().Status.Restarts.Infrastructure))
}

// workers are the pods whose agents run.
func (t *simTraining) workers() []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range t.server.pods() {
		if a := t.agents[pod.UID]; a != nil && !a.ended {
			pods = append(pods, pod)
		}
	}
	return pods
}

// TestAJobWithEverythingReal walks one job through what a job goes through.
func TestAJobWithEverythingReal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { newSimTraining(t, 1).walk() })
}

// TestOneWorldWhateverHappens has everything go wrong around one job: from the same seeds for some seconds, or from
// random ones for as long as WORLD_SIMULATION says (a duration). WORLD_SIMULATION_SEED replays one.
func TestOneWorldWhateverHappens(t *testing.T) {
	budget, first, only := 8*time.Second, uint64(1), false
	if text := os.Getenv("WORLD_SIMULATION"); text != "" {
		var err error
		if budget, err = time.ParseDuration(text); err != nil {
			t.Fatalf("WORLD_SIMULATION: %v", err)
		}
		first = uint64(time.Now().UnixNano() % 1_000_000_000)
	}
	if text := os.Getenv("WORLD_SIMULATION_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("WORLD_SIMULATION_SEED: %v", err)
		}
		first, only = seed, true
	}
	totals, began, jobs := map[string]int{}, time.Now(), 0
	for seed := first; time.Since(began) < budget && !t.Failed(); seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSimTraining(t, seed)
				begin := time.Now()
				s.live()
				for what, n := range s.counts {
					totals[what] += n
				}
				for reason, n := range s.history.changes {
					totals["rounds: "+string(reason)] += n
				}
				totals["terms"] += int(s.history.record.Term)
				totals["steps"] += len(s.history.committed)
				totals["steps made again"] += int(s.history.again)
				totals["virtual minutes"] += int(time.Since(begin) / time.Minute)
			})
		})
		jobs++
		if only {
			break
		}
	}
	t.Logf("%d jobs from seed %d on, in %s: %v", jobs, first, time.Since(began).Round(time.Millisecond), totals)
}
