package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/concertina-dev/concertina/test/e2e/ledger"
)

// sameLoss is how far a loss may lie from that of the undisturbed run, relatively.
const sameLoss = 1e-3

// expectEachSampleOnce checks what the programs of a completed job told of their steps: along the
// committed history every sample was used once in each epoch, and every loss is that of a run that
// nobody disturbed.
func (e *elasticJob) expectEachSampleOnce(ctx context.Context) {
	GinkgoHelper()
	run := ledger.Run{Logs: map[string]ledger.Log{}}
	// The last lines of a log take a moment to come.
	Eventually(func(g Gomega) {
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
				_, _ = fmt.Sscanf(line, "round %d: %d ranks, %d images to train with", &round, &ranks, &run.Samples)
			}
			for _, loss := range log.Losses {
				run.Steps = loss.Steps
			}
		}
		g.Expect(run.Samples).NotTo(BeZero())
		g.Expect(run.Steps).NotTo(BeZero())
		run.Rounds, run.Newest = nil, uint64(*e.get(ctx).Status.World.Round)
		worlds, err := e.worlds.Worlds()
		g.Expect(err).NotTo(HaveOccurred())
		for round, world := range worlds {
			run.Rounds = append(run.Rounds, ledger.Round{
				Number: uint64(round), Parent: uint64(*world.Parent), FromStep: uint64(*world.FromStep), Ranks: int(*world.Processes),
			})
		}
		g.Expect(run.Check()).To(Succeed())
	}, "20s", "1s").Should(Succeed())
	Expect(run.CompareLosses(e.undisturbed(ctx), sameLoss)).To(Succeed())
}

// undisturbed runs the same training here, as one rank.
func (e *elasticJob) undisturbed(ctx context.Context) []ledger.Loss {
	GinkgoHelper()
	program := filepath.Join(GinkgoT().TempDir(), "go-digits")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./examples/go-digits")
	build.Dir = cluster.Checkout
	out, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	var flags []string
	for _, flag := range e.flags {
		if !strings.HasPrefix(flag, "--step-time") && !strings.HasPrefix(flag, "--eval-time") && flag != "--ledger" {
			flags = append(flags, flag)
		}
	}
	out, err = exec.CommandContext(ctx, program, flags...).Output()
	Expect(err).NotTo(HaveOccurred())
	log, err := ledger.Parse(string(out))
	Expect(err).NotTo(HaveOccurred())
	return log.Losses
}
