package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/containers"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// restarts are the counters of a job.
type restarts struct{ program, infrastructure int }

func countedIn(status *v1alpha1.TrainingJobStatus) restarts {
	return restarts{int(ptr.Deref(status.Restarts.Program, 0)), int(ptr.Deref(status.Restarts.Infrastructure, 0))}
}

func (r restarts) sum() int { return r.program + r.infrastructure }

// effect is what a change does to a job.
type effect struct {
	what string
	// Of a change that meets a calm job, exactly: how often it is counted as a loss by the program,
	// and by infrastructure.
	program, infrastructure int
	// either is true when a loss may be counted by one or by the other, perhaps when a planned change may be faster:
	// then nothing is lost.
	either, perhaps bool
	// inCompany is how many losses it can become at most when it meets other changes: a worker that
	// was asked to leave may then be lost.
	inCompany int
	// changesWorld and changesTerm say that a job is not calm before it has another.
	changesWorld, changesTerm bool
}

// expectCounted compares the counters with what was done since the job was calm: exactly after one
// change. Losses of one recovery are counted once, so several changes have bounds only. So have those
// that the end of the training came before.
func (c *campaign) expectCounted(ctx context.Context, over bool) {
	GinkgoHelper()
	status := c.get(ctx).Status
	now := countedIn(&status)
	got := restarts{now.program - c.counted.program, now.infrastructure - c.counted.infrastructure}
	var what string
	var programs, company int
	for _, did := range c.group {
		what += did.what + "; "
		programs += did.program
		company += did.inCompany
	}
	switch {
	case len(c.group) == 0:
		Expect(got).To(Equal(restarts{}), "nothing was done")
	case len(c.group) == 1 && !over && c.group[0].either:
		Expect(got.sum()).To(Equal(1), "%s: %+v", what, got)
	case len(c.group) == 1 && !over && c.group[0].perhaps && got == (restarts{}):
	case len(c.group) == 1 && !over:
		Expect(got).To(Equal(restarts{c.group[0].program, c.group[0].infrastructure}), what)
	default:
		first := c.group[0]
		if !over && !first.perhaps && first.program+first.infrastructure > 0 {
			Expect(got.sum()).To(BeNumerically(">", 0), what)
		}
		Expect(got.sum()).To(BeNumerically("<=", company), "%s: %+v", what, got)
		Expect(got.program).To(BeNumerically("<=", programs), "%s: %+v", what, got)
	}
}

func (c *campaign) scaleWorkers(ctx context.Context) effect {
	GinkgoHelper()
	before := c.max
	for c.max == before {
		c.max = fewest + random.IntN(most-fewest+1)
	}
	c.lowest = min(c.lowest, c.max)
	c.scale(ctx, c.max)
	return effect{what: fmt.Sprintf("from %d to %d workers", before, c.max)}
}

func (c *campaign) touch(pod *corev1.Pod) string {
	c.touched[pod.UID] = true
	return pod.Name
}

func (c *campaign) killProgram(ctx context.Context) effect {
	GinkgoHelper()
	pod := pick(c.victims(ctx))
	killProgram(pod)
	c.crashed[pod.UID] = true
	return effect{what: "killed the program of " + c.touch(pod), program: 1, inCompany: 1, changesWorld: true}
}

func (c *campaign) killAgent(ctx context.Context) effect {
	GinkgoHelper()
	pod := pick(c.victims(ctx))
	few := len(c.members(ctx)) <= fewest
	signalAll(pod, syscall.SIGKILL)
	// With too few left the operator does not wait for the kubelet's word before it deletes the pod.
	return effect{
		what:    "killed the agent and the program of " + c.touch(pod),
		program: 1, either: few, inCompany: 1, changesWorld: true,
	}
}

func (c *campaign) deletePod(ctx context.Context) effect {
	GinkgoHelper()
	pod := pick(c.victims(ctx))
	Expect(cluster.Delete(ctx, pod)).To(Succeed())
	return effect{what: "deleted " + c.touch(pod), inCompany: 1, changesWorld: true}
}

func (c *campaign) forceDelete(ctx context.Context) effect {
	GinkgoHelper()
	pod := pick(c.victims(ctx))
	forceDelete(ctx, pod)
	return effect{what: "deleted by force " + c.touch(pod), infrastructure: 1, perhaps: true, inCompany: 1, changesWorld: true}
}

// drain empties one node, and opens it again once nobody is left there.
func (c *campaign) drain(ctx context.Context) effect {
	GinkgoHelper()
	node := pick(c.victims(ctx)).Spec.NodeName
	c.open(ctx)
	c.close(ctx, node)
	did := effect{what: "drained node " + node + " of", changesWorld: true}
	for _, pod := range c.running(ctx, node) {
		evict(ctx, &pod)
		did.what += " " + c.touch(&pod)
		did.inCompany++
	}
	Eventually(func() []corev1.Pod { return c.running(ctx, node) }).Should(BeEmpty())
	c.open(ctx)
	return did
}

// running are the pods of the job on a node that have not ended.
func (c *campaign) running(ctx context.Context, node string) []corev1.Pod {
	var pods []corev1.Pod
	for _, pod := range c.pods(ctx, 0) {
		if pod.Spec.NodeName == node && !framework.Ended(&pod) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// cordon closes a node to new workers, or opens the one that is closed.
func (c *campaign) cordon(ctx context.Context) effect {
	GinkgoHelper()
	if node := c.closed; node != "" {
		c.open(ctx)
		return effect{what: "opened node " + node}
	}
	nodes, err := cluster.ReadyNodes(ctx)
	Expect(err).NotTo(HaveOccurred())
	c.close(ctx, nodes[random.IntN(len(nodes))].Name)
	return effect{what: "closed node " + c.closed}
}

func (c *campaign) close(ctx context.Context, node string) {
	GinkgoHelper()
	Expect(cluster.Cordon(ctx, node, true)).To(Succeed())
	c.closed = node
}

// open opens the node that is closed, if one is.
func (c *campaign) open(ctx context.Context) {
	GinkgoHelper()
	if c.closed == "" {
		return
	}
	Expect(cluster.Cordon(ctx, c.closed, false)).To(Succeed())
	c.closed = ""
}

// stop lets a worker stand still, as on a node that hangs, until it is counted as lost. Only then it
// ends: an exit before that would be the program's.
func (c *campaign) stop(ctx context.Context) effect {
	GinkgoHelper()
	if len(c.group) > 0 {
		Expect(c.calm(ctx)).To(BeTrue(), "the training has ended")
	}
	pod := pick(c.victims(ctx))
	signalAll(pod, syscall.SIGSTOP)
	did := effect{what: "stopped " + c.touch(pod), infrastructure: 1, inCompany: 1, changesWorld: true}
	c.loses(ctx)
	// Its kubelet may have ended it by now.
	if processes, err := containers.Processes(pod, "trainer"); err == nil {
		Expect(containers.Signal(processes, syscall.SIGKILL)).To(Succeed())
	}
	return did
}

// loses waits until one more loss is counted.
func (c *campaign) loses(ctx context.Context) {
	GinkgoHelper()
	Eventually(func() int {
		status := c.get(ctx).Status
		return countedIn(&status).sum()
	}, "2m").Should(BeNumerically(">", c.counted.sum()))
}

func (c *campaign) killOperator(ctx context.Context) effect {
	GinkgoHelper()
	// The one before may not have started yet.
	Eventually(func() error { return cluster.KillOperator(ctx) }).Should(Succeed())
	return effect{what: "killed the operator", changesTerm: true}
}

// killNode takes the power from a node, and gives it back once the job goes on.
func (c *campaign) killNode(ctx context.Context) effect {
	GinkgoHelper()
	return c.loseNode(ctx, "kill", comesBack)
}

// cutNode takes a node off the network while everything on it runs on, and lets it back once the job goes
// on without it.
func (c *campaign) cutNode(ctx context.Context) effect {
	GinkgoHelper()
	did := c.loseNode(ctx, "cut", rejoins)
	// Their agents stay, and when they are back before others have their places, their programs are started anew.
	maps.Copy(c.crashed, c.touched)
	return did
}

// loseNode loses a node on which workers are, but not all, nor the operator.
func (c *campaign) loseNode(ctx context.Context, verb string, back func(context.Context, string)) effect {
	GinkgoHelper()
	if len(c.group) > 0 {
		Expect(c.calm(ctx)).To(BeTrue(), "the training has ended")
	}
	members, operator := c.members(ctx), operatorNode(ctx)
	on := map[string]int{}
	for i := range members {
		on[members[i].Spec.NodeName]++
	}
	candidates := slices.DeleteFunc(slices.Clone(members), func(pod corev1.Pod) bool {
		return pod.Spec.NodeName == operator || on[pod.Spec.NodeName] == len(members)
	})
	if len(candidates) == 0 {
		return effect{what: "no node can be spared"}
	}
	node := pick(candidates).Spec.NodeName
	c.open(ctx)
	for i := range members {
		if members[i].Spec.NodeName == node {
			c.touch(&members[i])
		}
	}
	DeferCleanup(func(ctx context.Context) {
		if CurrentSpecReport().Failed() {
			back(ctx, node)
		}
	})
	Expect(cluster.HackCluster(ctx, "node", verb, node)).To(Succeed())
	lost := time.Now()
	c.loses(ctx)
	took := time.Since(lost).Round(time.Second)
	back(ctx, node)
	return effect{
		what:           fmt.Sprintf("%s of node %s, counted as a loss after %s", verb, node, took),
		infrastructure: 1, inCompany: len(c.touched), changesWorld: true,
	}
}
