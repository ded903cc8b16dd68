package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/containers"
	"github.com/concertina-dev/concertina/test/e2e/framework"
	"github.com/concertina-dev/concertina/test/storage/faulty"
)

// survivors are the programs of the campaign. Each trains for some two minutes, and what is done to its job takes three more.
func survivors() []program {
	return []program{
		goSurvivor(260),
		// Large enough for shares, of which each worker writes some.
		pytorchProgram("PyTorch", 200, false, "--ballast=18"),
		pytorchProgram("PyTorch in shards", 200, true, "--ballast=6"),
	}
}

// goSurvivor has pieces of snapshots that are large enough for wrong bytes.
func goSurvivor(epochs int) program {
	p := goProgram(fmt.Sprintf("--epochs=%d", epochs), "--ballast=2097152")
	p.steps = epochs * stepsOfAnEpoch
	return p
}

// Nodes and the operator are hit here, so nothing else may run meanwhile.
var _ = Describe("The state of a job", Serial, long, func() {
	// Nodes are killed, and the storage is beside them.
	if framework.KindFromEnvironment() != framework.Local {
		return
	}
	It("survives whatever happens to programs, pods, nodes, the operator and the storage", func(ctx context.Context) {
		atLeast := time.Minute
		if text := os.Getenv("E2E_SURVIVAL"); text != "" {
			var err error
			atLeast, err = time.ParseDuration(text)
			Expect(err).NotTo(HaveOccurred(), "E2E_SURVIVAL is how long the campaign takes at least, such as 30m")
		}
		programs := survivors()
		random.Shuffle(len(programs), func(i, j int) { programs[i], programs[j] = programs[j], programs[i] })
		for began, number := time.Now(), 0; number < len(programs) || time.Since(began) < atLeast; number++ {
			program := programs[number%len(programs)]
			By(fmt.Sprintf("job %d: %s", number+1, program.what))
			newSurvivor(ctx, program).run(ctx)
		}
	})

	It("is all there after a node was killed of which a snapshot was safe, and the storage is not read", func(ctx context.Context) {
		s := newSurvivor(ctx, goSurvivor(150))
		s.world(ctx, 0, most)
		var safe int64
		Eventually(func(g Gomega) {
			memory := s.get(ctx).Status.Checkpoint.Memory
			g.Expect(memory.Copies).To(HaveValue(BeNumerically(">=", 2)))
			safe = *memory.Step
		}, "90s", "20ms").Should(Succeed())
		before, round := s.members(ctx), *s.get(ctx).Status.World.Round
		operator := operatorNode(ctx)
		node := pick(slices.DeleteFunc(before, func(pod corev1.Pod) bool { return pod.Spec.NodeName == operator })).Spec.NodeName
		s.killNodes(ctx, node)
		Eventually(func() int64 { return *s.get(ctx).Status.World.Round }, "2m").Should(BeNumerically(">", round))
		Expect(s.get(ctx).Status.World.FromStep).To(HaveValue(BeNumerically(">=", safe)))
		s.powerOn(ctx)
		s.ends(ctx)
		Expect(s.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
		Expect(s.storage.Reads()).To(BeZero(), "pieces of a checkpoint were read")
	})

	It("is what the newest durable checkpoint has after all nodes were killed", func(ctx context.Context) {
		s := newSurvivor(ctx, goSurvivor(200))
		s.world(ctx, 0, most)
		durable := func() int64 { return ptr.Deref(s.get(ctx).Status.Checkpoint.Step, 0) }
		Eventually(durable, "90s", "20ms").Should(BeNumerically(">", 0))
		known, round := durable(), *s.get(ctx).Status.World.Round
		s.killNodes(ctx, s.nodes(ctx)...)
		s.powerOn(ctx)
		// In another attempt, or with others in their places.
		Eventually(func() int64 { return *s.get(ctx).Status.World.Round }, "4m").Should(BeNumerically(">", round))
		Expect(s.get(ctx).Status.World.FromStep).To(HaveValue(BeNumerically(">=", known)))
		s.ends(ctx)
	})
})

// survivor is a job with copies and a storage, and what is being done to it.
type survivor struct {
	*elasticJob
	storage *hostStorage
	// down are the nodes that have no power.
	down []string
	// restarted are the rounds from which on workers may have another program than before, by the names of their pods.
	restarted map[string]uint64
	// gentle is true as long as nothing has happened since the job trained by which workers are lost, released are the attempts that
	// were suspended then.
	gentle   bool
	released map[int32]bool
	// blame is how many failures may be the programs'.
	blame int
}

func newSurvivor(ctx context.Context, program program) *survivor {
	GinkgoHelper()
	storage := startHostStorage()
	namespace := newNamespace(ctx)
	storage.secret(ctx, namespace)
	e := launchProgram(ctx, namespace, program, fewest, most, func(spec *v1alpha1.TrainingJobSpec) {
		spec.Failure.RegroupTimeout = &metav1.Duration{Duration: 5 * time.Minute}
		spec.Failure.MaxBackOff = &metav1.Duration{Duration: 10 * time.Second}
		spec.Checkpoint.Copies = ptr.To[int32](2)
		spec.Checkpoint.Storage = &v1alpha1.StorageSpec{URL: storage.url, SecretName: "s3"}
		spec.Checkpoint.Interval = &metav1.Duration{Duration: 10 * time.Second}
	})
	s := &survivor{elasticJob: e, storage: storage, restarted: map[string]uint64{}, released: map[int32]bool{}}
	DeferCleanup(s.powerOn)
	s.trains(ctx)
	return s
}

// survivals is how often each sort of disturbance comes in one turn of the deck.
var survivals = map[string]int{
	"killProgram": 3, "killAgent": 1, "delete": 2, "forceDelete": 1, "evict": 2, "suspend": 1, "killOperator": 2, "nodes": 4, "storage": 5,
}

// run disturbs the job until three quarters of its training are done, and sees that it is completed as it should be.
func (s *survivor) run(ctx context.Context) {
	GinkgoHelper()
	var deck []string
	for number := 1; s.step() < s.program.steps*3/4; number++ {
		if len(deck) == 0 {
			for _, name := range slices.Sorted(maps.Keys(survivals)) {
				deck = append(deck, slices.Repeat([]string{name}, survivals[name])...)
			}
			random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		name := deck[0]
		deck = deck[1:]
		after := s.step()
		what := s.disturb(ctx, name)
		By(fmt.Sprintf("%d, after step %d of %d: %s", number, after, s.program.steps, what))
		// Some come at once, some meet a world that trains again.
		if random.IntN(3) > 0 {
			s.goesOn(ctx)
		}
	}
	s.ends(ctx)
	AddReportEntry("a job that survived", fmt.Sprintf("%s: %d attempts, %d rounds, faults of the storage %v",
		s.program.what, *s.get(ctx).Status.Attempt, *s.get(ctx).Status.World.Round, s.storage.Faults()))
}

// disturb does one thing to the job, and says what.
func (s *survivor) disturb(ctx context.Context, name string) string {
	GinkgoHelper()
	if !slices.Contains([]string{"suspend", "storage", "killOperator"}, name) {
		s.gentle = false
	}
	switch name {
	case "suspend":
		return s.suspendAndResume(ctx)
	case "storage":
		return s.disturbStorage()
	case "nodes":
		return s.disturbNodes(ctx)
	case "killOperator":
		if slices.Contains(s.down, operatorNode(ctx)) {
			s.powerOn(ctx)
		}
		killOperator(ctx, s.job)
		return "killed the operator"
	}
	pods := slices.DeleteFunc(s.members(ctx), func(pod corev1.Pod) bool { return slices.Contains(s.down, pod.Spec.NodeName) })
	if len(pods) == 0 {
		return name + ": there is nobody"
	}
	pod := pick(pods)
	switch name {
	case "killProgram":
		return s.killProgram(ctx, pod)
	case "killAgent":
		if processes, err := containers.Processes(pod, "trainer"); err == nil {
			_ = containers.Signal(processes, syscall.SIGKILL)
			s.blame++
		}
		return "killed the agent and the program of " + pod.Name
	case "delete":
		Expect(cluster.Delete(ctx, pod)).To(Succeed())
		return "deleted " + pod.Name
	case "forceDelete":
		loseByForce(ctx, pod)
		return "deleted by force " + pod.Name
	default:
		evict(ctx, pod)
		return "evicted " + pod.Name
	}
}

func (s *survivor) killProgram(ctx context.Context, pod *corev1.Pod) string {
	GinkgoHelper()
	programs, err := containers.Children(pod, "trainer")
	if err != nil || len(programs) == 0 {
		return pod.Name + " runs no program that could be killed"
	}
	Expect(containers.Signal(programs, syscall.SIGKILL)).To(Succeed())
	// It may have been in a world of which nobody has told yet.
	s.restarted[pod.Name] = uint64(*s.get(ctx).Status.World.Round) + 2
	s.blame++
	return "killed the program of " + pod.Name
}

// suspendAndResume suspends the job, and resumes it once its workers are gone, or at once.
func (s *survivor) suspendAndResume(ctx context.Context) string {
	GinkgoHelper()
	attempt, gentle := *s.get(ctx).Status.Attempt, s.gentle
	s.suspend(ctx, true)
	if random.IntN(3) == 0 {
		s.suspend(ctx, false)
		return "suspended and resumed"
	}
	// Whoever has state waits for the storage.
	s.storage.heal()
	s.powerOn(ctx)
	Eventually(s.holding(ctx), "3m").Should(BeZero())
	s.released[attempt] = gentle
	s.suspend(ctx, false)
	return fmt.Sprintf("suspended until all had left, and resumed; nothing else had happened: %t", gentle)
}

// disturbStorage has the storage work in another way, mostly well where it does not.
func (s *survivor) disturbStorage() string {
	GinkgoHelper()
	if s.storage.how != "" && random.IntN(3) > 0 {
		s.storage.heal()
		return "the storage works well"
	}
	s.storage.heal()
	modes := []faulty.Mode{faulty.Badly, faulty.Badly, faulty.Refusing, faulty.Stuck}
	if i := random.IntN(len(modes) + 1); i < len(modes) {
		s.storage.Set(modes[i])
		s.storage.how = string(modes[i])
	} else {
		s.storage.kill()
		s.storage.how = "killed"
	}
	return "the storage is " + s.storage.how
}

// disturbNodes kills one node, rarely more, or brings back those that are down.
func (s *survivor) disturbNodes(ctx context.Context) string {
	GinkgoHelper()
	if len(s.down) > 0 {
		what := "power again for " + strings.Join(s.down, " and ")
		s.powerOn(ctx)
		return what
	}
	nodes := s.nodes(ctx)
	random.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	number := []int{1, 1, 1, 1, 1, 1, 1, 2, 2, 3}[random.IntN(10)]
	nodes = nodes[:min(number, len(nodes))]
	operator := operatorNode(ctx)
	s.killNodes(ctx, nodes...)
	what := "no power for " + strings.Join(nodes, " and ")
	// Without an operator nothing would come of it.
	if slices.Contains(nodes, operator) {
		s.powerOn(ctx)
		what += ", where the operator was, and power again"
	}
	return what
}

func (s *survivor) nodes(ctx context.Context) []string {
	GinkgoHelper()
	ready, err := cluster.ReadyNodes(ctx)
	Expect(err).NotTo(HaveOccurred())
	var names []string
	for _, node := range ready {
		names = append(names, node.Name)
	}
	return names
}

func (s *survivor) killNodes(ctx context.Context, nodes ...string) {
	GinkgoHelper()
	for _, node := range nodes {
		s.down = append(s.down, node)
		Expect(cluster.HackCluster(ctx, "node", "kill", node)).To(Succeed())
	}
}

// powerOn brings all nodes back.
func (s *survivor) powerOn(ctx context.Context) {
	GinkgoHelper()
	for _, node := range s.down {
		Expect(cluster.HackCluster(ctx, "node", "add", node)).To(Succeed())
	}
	for _, node := range s.down {
		isReady(ctx, node)
	}
	s.down = nil
}

// goesOn waits until the job trains again, or is complete. What is wrong with nodes and with the storage ends where it takes long.
func (s *survivor) goesOn(ctx context.Context) {
	GinkgoHelper()
	round := *s.get(ctx).Status.World.Round
	step, began, more := s.step(), time.Now(), random.IntN(300)
	Eventually(func(g Gomega) {
		if time.Since(began) > s.program.slowness {
			s.storage.heal()
			s.powerOn(ctx)
		}
		if failed := s.condition(ctx, v1alpha1.ConditionFailed)(); strings.HasPrefix(failed, "True") {
			StopTrying("the job has failed: " + failed).Now()
		}
		if strings.HasPrefix(s.condition(ctx, v1alpha1.ConditionComplete)(), "True") {
			return
		}
		g.Expect(s.condition(ctx, v1alpha1.ConditionTraining)()).To(HavePrefix("True WorldFormed"))
		newer := *s.get(ctx).Status.World.Round > round
		g.Expect(newer || s.step() > step+50).To(BeTrue(), "neither is there another world, nor does this one make steps")
	}, "6m").Should(Succeed())
	// The next disturbance may find snapshots and checkpoints of this world, or none yet.
	trained, begun := s.step()+more, time.Now()
	Eventually(func() bool { return s.step() >= trained || time.Since(begun) > 10*time.Second }).Should(BeTrue())
	s.gentle = true
}
