package e2e

import (
	"context"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/test/e2e/ledger"
)

// sameLoss is how far a loss may lie from that of the undisturbed run, relatively.
const sameLoss = 1e-3

// expectEachSampleOnce checks what the programs of a completed job told of their steps: along the
// committed history every sample was used once in each epoch, and every loss is that of a run that
// nobody disturbed.
func (e *elasticJob) expectEachSampleOnce(ctx context.Context) ledger.Run {
	GinkgoHelper()
	var run ledger.Run
	// The last lines of a log take a moment to come.
	Eventually(func(g Gomega) {
		run = e.told(ctx, g)
		g.Expect(run.Check()).To(Succeed())
	}, "20s", "1s").Should(Succeed())
	Expect(run.CompareLosses(e.program.undisturbed(ctx, e.namespace), sameLoss)).To(Succeed())
	return run
}

// told is what the programs of a job that is complete have told of their steps, and the job's status of its worlds.
func (e *elasticJob) told(ctx context.Context, g Gomega) ledger.Run {
	GinkgoHelper()
	run := ledger.Run{Logs: map[string]ledger.Log{}, Newest: uint64(*e.get(ctx).Status.World.Round)}
	recorded, err := e.logs.Lines()
	g.Expect(err).NotTo(HaveOccurred())
	// What is followed may break off right before the last line.
	for _, pod := range e.pods(ctx, 0) {
		recorded[pod.Name] = nil
		for _, printed := range lines(ctx, &pod) {
			recorded[pod.Name] = append(recorded[pod.Name], printed.text)
		}
	}
	for name, text := range recorded {
		log, err := ledger.Parse(strings.Join(text, "\n") + "\n")
		g.Expect(err).NotTo(HaveOccurred(), name)
		run.Logs[name] = log
		for _, line := range text {
			var round, ranks int
			_, _ = fmt.Sscanf(line, "round %d: %d ranks, %d", &round, &ranks, &run.Samples)
		}
		for _, loss := range log.Losses {
			run.Steps = loss.Steps
		}
	}
	g.Expect(run.Samples).NotTo(BeZero())
	g.Expect(run.Steps).NotTo(BeZero())
	writes, err := e.worlds.Writes()
	g.Expect(err).NotTo(HaveOccurred())
	// The first world of an attempt goes on from a checkpoint, if there is one, which may be told of later.
	restored := map[int64][]int64{}
	for _, written := range writes {
		if checkpoint := written.Status.Checkpoint; checkpoint.Step != nil {
			restored[*checkpoint.Step] = append(restored[*checkpoint.Step], ptr.Deref(checkpoint.Round, 0))
		}
	}
	known := map[int64]bool{}
	for _, written := range writes {
		world := written.Status.World
		if world == nil || ptr.Deref(world.Round, 0) == 0 || known[*world.Round] {
			continue
		}
		known[*world.Round] = true
		parent := *world.Parent
		for _, round := range restored[*world.FromStep] {
			if *world.Parent == 0 && round < *world.Round {
				parent = max(parent, round)
			}
		}
		run.Rounds = append(run.Rounds, ledger.Round{
			Number: uint64(*world.Round), Parent: uint64(parent), FromStep: uint64(*world.FromStep), Ranks: int(*world.Processes),
		})
	}
	return run
}
