package integration

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// reclaim is a story: job low of 2 to 4 workers has all four places of a node, and a gang of two of job
// big, which is more important, needs two of them. Operators come and go meanwhile.
type reclaim struct {
	namespace, node string
	low, big        *job
	clock           *clock
	// lent are the workers of low beyond its gang.
	lent []string
	// op is who leads now.
	op    *operator
	round uint64

	mu sync.Mutex
	// entered is true once big is there.
	entered bool
	// marked are the workers of low that were seen with a mark, with what it says.
	marked map[string]string
	// wrong is what should not have been.
	wrong []string
}

// newReclaim plays the story up to where big has yet to come.
func newReclaim(ctx context.Context) *reclaim {
	GinkgoHelper()
	r := &reclaim{namespace: newNamespace(ctx), clock: &clock{}, marked: map[string]string{}, round: 2}
	r.node = elasticNode(ctx, r.namespace, 4)
	createClass(ctx, "important-"+r.namespace, 1000)
	r.lead(ctx, 0)
	r.low = createJob(ctx, r.namespace, named("low"), upTo(4, r.node))
	r.big = &job{namespace: r.namespace, name: "big"}
	r.low.trainOn(ctx, r.op, r.node)
	third := r.low.grown(ctx)
	newcomers := []*corev1.Pod{third, r.low.grown(ctx, third)}
	for _, pod := range newcomers {
		r.lent = append(r.lent, pod.Name)
		schedule(ctx, pod)
		kubelet(ctx, pod, runs)
	}
	Eventually(r.op.all).Should(ContainElement(And(HavePrefix("expect attempt 1:"), ContainSubstring(r.lent[0]+"@"), ContainSubstring(r.lent[1]+"@"))))
	Expect(r.op.worlds.goOn(r.low.key(), rendezvous.Change{Round: 2, From: 2, To: 4, Reason: rendezvous.ReasonCapacityAvailable}, newcomers, nil)).To(Succeed())
	Eventually(r.op.all).Should(ContainElement(HavePrefix("event Normal Resized: round 2: from 2 to 4 workers")))
	// What it grew by it keeps for a while.
	r.clock.advance(15 * time.Second)
	r.op.look(r.low)
	return r
}

// lead has the next operator take over, which is killed after so many writes; 0 for never.
func (r *reclaim) lead(ctx context.Context, killAfter int) {
	GinkgoHelper()
	before := r.op
	if before != nil {
		before.stop()
	}
	r.op = startOperator(ctx, r.namespace, settings{clock: r.clock, killAfter: killAfter, before: before,
		answer: func(_ context.Context, line string) error { r.check(ctx, line); return nil },
		told:   func(job rendezvous.JobKey, gang rendezvous.Gang) { r.checkTold(ctx, job, gang) },
	})
}

// enter has big come.
func (r *reclaim) enter(ctx context.Context) {
	GinkgoHelper()
	r.mu.Lock()
	r.entered = true
	r.mu.Unlock()
	createJob(ctx, r.namespace, named("big"), upTo(2, r.node), ofClass("important-"+r.namespace))
}

// marks are the marks on the pods of low that are there.
func (r *reclaim) marks(ctx context.Context) map[string]string {
	marks := map[string]string{}
	for _, pod := range r.low.pods(ctx, 0) {
		if mark, marked := fleet.MarkOf(pod); marked {
			marks[pod.Name] = mark.String()
		}
	}
	return marks
}

// check looks at the cluster before each write of an operator.
func (r *reclaim) check(ctx context.Context, line string) {
	marks := r.marks(ctx)
	there := len(r.low.pods(ctx, 0))
	target := ptr.Deref(r.low.get(ctx).Status.Workers.Target, 0)
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, mark := range marks {
		if old := r.marked[name]; old != "" && old != mark {
			r.wrong = append(r.wrong, fmt.Sprintf("before %q the mark of %s reads %q instead of %q", line, name, mark, old))
		}
		r.marked[name] = mark
	}
	if r.entered && target == 2 && len(r.marked) != 2 {
		r.wrong = append(r.wrong, fmt.Sprintf("before %q the target is 2 and marked are %v", line, r.marked))
	}
	if strings.HasPrefix(line, "create Pod big-") && there > 2 {
		r.wrong = append(r.wrong, fmt.Sprintf("%s while %d workers of low are there", line, there))
	}
}

// checkTold looks at the cluster before the rendezvous is told who leaves.
func (r *reclaim) checkTold(ctx context.Context, job rendezvous.JobKey, gang rendezvous.Gang) {
	if job != r.low.key() {
		return
	}
	leaving := 0
	for _, member := range gang.Members {
		if member.Leaving != "" {
			leaving++
		}
	}
	if leaving == 0 {
		return
	}
	marks, target := r.marks(ctx), ptr.Deref(r.low.get(ctx).Status.Workers.Target, 0)
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.Copy(r.marked, marks)
	if leaving > 2 || len(r.marked) != 2 || target != 2 {
		r.wrong = append(r.wrong, fmt.Sprintf("the rendezvous is told that %d leave while the target is %d and marked are %v", leaving, target, r.marked))
	}
}

// play does what agents, kubelets and the scheduler would do next. It says whether big trains.
func (r *reclaim) play(ctx context.Context) bool {
	GinkgoHelper()
	r.goOn(ctx)
	reap(ctx, r.namespace)
	for _, pod := range r.big.pods(ctx, 0) {
		if pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
			schedule(ctx, pod)
			kubelet(ctx, pod, runs)
		}
	}
	if r.op.worlds.waits(r.big.key()) {
		Expect(r.op.worlds.form(r.big.key(), 1)).To(Succeed())
	}
	return strings.HasPrefix(r.big.condition(ctx, v1alpha1.ConditionTraining)(), "True WorldFormed")
}

// goOn has the world of low go on without those who are to leave.
func (r *reclaim) goOn(ctx context.Context) {
	GinkgoHelper()
	names := r.op.worlds.leavers(r.low.key())
	if len(names) == 0 {
		return
	}
	var leave []*corev1.Pod
	for _, pod := range r.low.pods(ctx, 0) {
		if slices.Contains(names, pod.Name) {
			leave = append(leave, pod)
		}
	}
	r.round++
	Expect(r.op.worlds.goOn(r.low.key(), rendezvous.Change{
		Round: r.round, From: 4, To: 4 - int32(len(names)), Reason: rendezvous.ReasonReclaimed}, nil, leave)).To(Succeed())
}

// waits says whether all members of an expected gang have a node and no world.
func (w *worlds) waits(job rendezvous.JobKey) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.gangs[job].Members) > 0 && w.seen[job].Round == 0
}

// leavers are the members of a world that are to leave it.
func (w *worlds) leavers(job rendezvous.JobKey) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for _, member := range w.gangs[job].Members {
		if member.Leaving != "" && w.seen[job].Members[member.UID].InWorld {
			names = append(names, member.Name)
		}
	}
	return names
}

// playOut plays until big trains, or the operator is killed. It says whether big trains.
func (r *reclaim) playOut(ctx context.Context) bool {
	GinkgoHelper()
	done := false
	Eventually(func() bool {
		if r.op.isKilled() {
			return true
		}
		done = r.play(ctx)
		return done
	}).Should(BeTrue(), func() string { return strings.Join(r.op.all(), "\n") })
	return done
}

// expectEnd checks that the two who were marked have gone, nobody else, and that all is well.
func (r *reclaim) expectEnd(ctx context.Context) {
	GinkgoHelper()
	Eventually(func() []string { reap(ctx, r.namespace); return r.low.podNames(ctx)() }).Should(Equal([]string{"low-1-0", "low-1-1"}))
	r.mu.Lock()
	defer r.mu.Unlock()
	Expect(r.wrong).To(BeEmpty())
	Expect(slices.Sorted(maps.Keys(r.marked))).To(ConsistOf(r.lent))
	for _, mark := range r.marked {
		Expect(mark).To(MatchRegexp(`^Reclaimed %s/big \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$`, r.namespace))
	}
	Expect(r.marks(ctx)).To(BeEmpty())
	low := r.low.get(ctx).Status
	Expect(low.Workers.Target).To(HaveValue(BeEquivalentTo(2)))
	Expect(low.Restarts).To(Equal(v1alpha1.RestartsStatus{}))
	Expect(low.Attempt).To(HaveValue(BeEquivalentTo(1)))
	Expect(r.low.condition(ctx, v1alpha1.ConditionTraining)()).To(HavePrefix("True WorldFormed"))
	Expect(r.big.get(ctx).Status.Restarts).To(Equal(v1alpha1.RestartsStatus{}))
	Expect(r.big.pods(ctx, 0)).To(HaveLen(2))
}

var _ = Describe("Room that is taken back", func() {
	It("is left by two marked workers, in order", func(ctx context.Context) {
		r := newReclaim(ctx)
		before := len(r.op.all())
		r.enter(ctx)
		Expect(r.playOut(ctx)).To(BeTrue())
		r.expectEnd(ctx)
		lines := r.op.all()[before:]
		at := func(fits func(line string) bool) int {
			GinkgoHelper()
			found := slices.IndexFunc(lines, fits)
			Expect(found).To(BeNumerically(">=", 0), strings.Join(lines, "\n"))
			return found
		}
		is := func(text string) func(string) bool { return func(line string) bool { return line == text } }
		marked := max(at(is("patch status of Pod "+r.lent[0]+" Leaving")), at(is("patch status of Pod "+r.lent[1]+" Leaving")))
		told := at(func(line string) bool { return strings.Contains(line, "(leaves: Reclaimed)") })
		Expect(lines[told]).To(Equal(fmt.Sprintf(
			"expect attempt 1: low-1-0@%[1]s low-1-1@%[1]s %[2]s@%[1]s (leaves: Reclaimed) %[3]s@%[1]s (leaves: Reclaimed)", r.node, r.lent[0], r.lent[1])))
		Expect(lines[marked:told]).To(ContainElement("write status"), "the target falls in between")
		deleted := []int{at(is("delete Pod " + r.lent[0])), at(is("delete Pod " + r.lent[1]))}
		Expect(min(deleted[0], deleted[1])).To(BeNumerically(">", told))
		Expect(at(is("create Pod big-1-0"))).To(BeNumerically(">", max(deleted[0], deleted[1])))
		Expect(lines).To(ContainElement(fmt.Sprintf("event Normal Reclaimed: the room of %s is for job %s/big", strings.Join(r.lent, ", "), r.namespace)))
		Expect(r.op.count("patch status of Pod "+r.lent[0]+" Leaving")+r.op.count("patch status of Pod "+r.lent[1]+" Leaving")).To(Equal(2), "a mark is written once")
	})

	It("is left by the same two when the operator is killed", func(ctx context.Context) {
		random := rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 0))
		for range 4 {
			killedAfter(ctx, 1+random.IntN(20))
		}
	})

	It("is left by the same two whenever the operator is killed", long, func(ctx context.Context) {
		for range 3 {
			kills := 0
			for killedAfter(ctx, kills+1) {
				kills++
			}
			Expect(kills).To(BeNumerically(">=", 18), "the story is shorter than it was")
			GinkgoWriter.Printf("%d kills\n", kills)
		}
	})
})

// killedAfter plays the story with an operator that is killed after so many writes, and another one after
// it. It says whether the first one was.
func killedAfter(ctx context.Context, writes int) bool {
	GinkgoHelper()
	By(fmt.Sprintf("killing the operator after write %d", writes))
	r := newReclaim(ctx)
	r.lead(ctx, writes)
	r.enter(ctx)
	done := r.playOut(ctx)
	if !done {
		r.lead(ctx, 0)
		Expect(r.playOut(ctx)).To(BeTrue())
	}
	r.expectEnd(ctx)
	r.op.stop()
	return !done
}
