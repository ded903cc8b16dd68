package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

const (
	fewest, most = 2, 5
	// stepsOfAnEpoch is how many steps of 64 the 1438 images make.
	stepsOfAnEpoch = 23
)

// Whole nodes and the operator are hit here, so nothing else may run meanwhile.
var _ = Describe("A job whose world changes at random", Serial, func() {
	// Programs and agents are reached as processes of this machine.
	if framework.KindFromEnvironment() != framework.Local {
		return
	}
	It("trains as if nothing had happened, through 20 changes", short, func(ctx context.Context) {
		newCampaign(ctx, 330).run(ctx, deck(1), 3*time.Minute)
	})

	It("trains as if nothing had happened, through 200 changes", long, func(ctx context.Context) {
		newCampaign(ctx, 2200).run(ctx, deck(10), 20*time.Minute)
	})
})

// A disturbance is one sort of change.
type disturbance func(*campaign, context.Context) effect

var disturbances = map[string]disturbance{
	"scale": (*campaign).scaleWorkers, "killProgram": (*campaign).killProgram, "killAgent": (*campaign).killAgent,
	"delete": (*campaign).deletePod, "forceDelete": (*campaign).forceDelete, "drain": (*campaign).drain,
	"cordon": (*campaign).cordon, "stop": (*campaign).stop, "killOperator": (*campaign).killOperator,
	"killNode": (*campaign).killNode, "cutNode": (*campaign).cutNode,
}

// often is how often each sort comes in 20 changes.
var often = map[string]int{
	"scale": 3, "killProgram": 2, "killAgent": 2, "delete": 2, "forceDelete": 2, "drain": 2, "cordon": 2, "stop": 1,
	"killOperator": 2, "killNode": 1, "cutNode": 1,
}

// deck is the usual 20 changes so many times, shuffled.
func deck(times int) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(often)) {
		for range times * often[name] {
			names = append(names, name)
		}
	}
	random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names
}

// campaign is an elastic job, and what was done to it since it was calm: trained in a world of all the
// workers that it is to have, with all losses counted.
type campaign struct {
	*elasticJob
	epochs int
	// max is spec.workers.max, lowest the lowest that it was since the job was calm.
	max, lowest int
	closed      string
	touched     map[types.UID]bool
	// crashed are those of them that may stay: their programs are started anew.
	crashed map[types.UID]bool
	group   []effect
	// holders are the workers that held the newest snapshot when the job was calm.
	holders map[types.UID]bool
	// counted, round and term are those of the calm.
	counted     restarts
	round, term int64
}

func newCampaign(ctx context.Context, epochs int) *campaign {
	GinkgoHelper()
	e := startElastic(ctx, fewest, most, fmt.Sprintf("--epochs=%d", epochs))
	c := &campaign{elasticJob: e, epochs: epochs, max: most, touched: map[types.UID]bool{}, crashed: map[types.UID]bool{}}
	DeferCleanup(c.open)
	Expect(c.calm(ctx)).To(BeTrue(), "the job is over before the first change")
	return c
}

// run makes the changes and waits for the end of the training. The changes keep pace with it: behind
// their time they meet the job as it is.
func (c *campaign) run(ctx context.Context, names []string, end time.Duration) {
	GinkgoHelper()
	for i, name := range names {
		Expect(c.over(ctx)).To(BeFalse(), "the training has ended before change %d", i+1)
		By(fmt.Sprintf("change %d of %d, %s, after step %d", i+1, len(names), name, c.step()))
		did := disturbances[name](c, ctx)
		By("    " + did.what)
		c.group = append(c.group, did)
		behind := c.step() > c.epochs*stepsOfAnEpoch*(i+1)/(len(names)+2)
		if random.IntN(2) == 0 && !behind {
			c.calm(ctx)
		}
	}
	c.ends(ctx, end)
}

// ends waits for the end of the training, and judges it as a whole.
func (c *campaign) ends(ctx context.Context, end time.Duration) {
	GinkgoHelper()
	c.open(ctx)
	c.calm(ctx)
	c.completes(ctx, end)
	Expect(c.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)), "the gang never starts over")
	changes, err := c.history.Changes()
	Expect(err).NotTo(HaveOccurred())
	expectNamesUsedOnce(changes)
	expectGangOrNothing(changes, fewest)
	worlds, err := c.worlds.Worlds()
	Expect(err).NotTo(HaveOccurred())
	for round, world := range worlds {
		Expect(world.Workers).To(HaveValue(And(BeNumerically(">=", fewest), BeNumerically("<=", most))), "workers of round %d", round)
	}
	c.expectEachSampleOnce(ctx)
}

func (c *campaign) over(ctx context.Context) bool {
	return strings.HasPrefix(c.condition(ctx, v1alpha1.ConditionComplete)(), "True")
}

// calm waits until the job is calm and checks what the changes since then were counted as. It is false
// when the job is complete instead.
func (c *campaign) calm(ctx context.Context) bool {
	GinkgoHelper()
	over := false
	Eventually(func(g Gomega) {
		if failed := c.condition(ctx, v1alpha1.ConditionFailed)(); strings.HasPrefix(failed, "True") {
			StopTrying("the job has failed: " + failed).Now()
		}
		if over = c.over(ctx); !over {
			c.settled(ctx, g)
		}
	}, "3m").Should(Succeed())
	c.expectCounted(ctx, over)
	status := c.get(ctx).Status
	c.round, c.term = *status.World.Round, *status.World.Term
	c.counted, c.lowest, c.group = countedIn(&status), c.max, nil
	c.holders = writers(c.members(ctx), c.ranks(ctx))
	clear(c.touched)
	clear(c.crashed)
	return !over
}

// settled says what the job still lacks to be calm.
func (c *campaign) settled(ctx context.Context, g Gomega) {
	job := c.get(ctx)
	status := &job.Status
	g.Expect(c.condition(ctx, v1alpha1.ConditionTraining)()).To(HavePrefix("True WorldFormed"))
	g.Expect(status.ObservedGeneration).To(HaveValue(Equal(job.Generation)))
	g.Expect(status.World.Workers).To(HaveValue(BeEquivalentTo(c.max)), "there is room for all")
	if entries := status.Resizes; status.World.Reason != "Start" {
		g.Expect(entries).NotTo(BeEmpty())
		g.Expect(entries[len(entries)-1].Round).To(Equal(status.World.Round), "losses are counted once the new world trains")
	}
	for _, did := range c.group {
		if did.changesWorld {
			g.Expect(*status.World.Round).To(BeNumerically(">", c.round), did.what)
		}
		if did.changesTerm {
			g.Expect(*status.World.Term).To(BeNumerically(">", c.term), did.what)
		}
	}
	members := c.members(ctx)
	g.Expect(members).To(HaveLen(int(*status.World.Workers)))
	for i := range members {
		if c.crashed[members[i].UID] {
			continue
		}
		g.Expect(c.touched).NotTo(HaveKey(members[i].UID), "%s is still there", members[i].Name)
	}
	// Who still runs and is in no world is on its way in or out.
	g.Expect(c.holding(ctx)()).To(Equal(len(members)))
}

// victims are workers in the world to which nothing was done yet. The job keeps its state when any one
// of them is lost at once; where that is not certain the job is calm first.
func (c *campaign) victims(ctx context.Context) []corev1.Pod {
	GinkgoHelper()
	list := func() []corev1.Pod {
		untouched := slices.DeleteFunc(c.members(ctx), func(pod corev1.Pod) bool { return c.touched[pod.UID] })
		return expendable(untouched, c.holders)
	}
	if len(c.group) == 0 {
		return list()
	}
	// In the middle of a change it takes some more: not everybody holds the newest state yet.
	if pods := list(); min(len(pods), c.lowest-len(c.touched)) > 2 {
		return pods
	}
	Expect(c.calm(ctx)).To(BeTrue(), "the training has ended")
	return list()
}
