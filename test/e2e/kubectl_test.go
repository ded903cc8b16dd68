package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/console"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

var _ = Describe("kubectl", short, func() {
	It("explains the fields", func(ctx context.Context) {
		text, err := cluster.Kubectl(ctx, "explain", "trainingjob.spec.workers.min")
		Expect(err).NotTo(HaveOccurred())
		Expect(text).To(ContainSubstring("the number of workers that start together or not at all"))
	})

	It("shows state, workers, round, step, checkpoint and age of a job that trains", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		j := submit(ctx, namespace, framework.NewJob("digits", "--epochs=2", "--step-time=50ms"))
		j.completes(ctx, time.Minute)
		text, err := cluster.Kubectl(ctx, "get", "trainingjobs", "--namespace", namespace)
		Expect(err).NotTo(HaveOccurred())
		rows := strings.Split(strings.TrimSpace(text), "\n")
		Expect(rows).To(HaveLen(2))
		Expect(strings.Fields(rows[0])).To(Equal([]string{"NAME", "STATE", "WORKERS", "ROUND", "STEP", "CHECKPOINT", "AGE"}))
		row := strings.Fields(rows[1])
		Expect(row[:4]).To(Equal([]string{"digits", "Complete", "0/2-2", "1"}))
		Expect(row[4]).To(MatchRegexp(`^\d+$`))
	})

	It("has a plugin that shows the plan, explains a job, and shows what the jobs do", func(ctx context.Context) {
		folder := buildPlugin(ctx)
		namespace := newNamespace(ctx)
		j := submit(ctx, namespace, framework.NewJob("digits", framework.Endless...).GPUs(1))
		j.trains(ctx)
		huge := submit(ctx, namespace, framework.NewJob("huge", framework.Endless...).Workers(1000, 1000).GPUs(1))
		Eventually(huge.condition(ctx, v1alpha1.ConditionGangScheduled)).Should(HavePrefix("False Queued: "))

		plan := concertina(ctx, folder, "plan", "--all", "--namespace", namespace)
		Expect(plan).To(MatchRegexp(`(?m)^%s/huge +0 +Queued +0 +\d+ .*larger than the cluster`, namespace))
		Expect(plan).To(MatchRegexp(`(?m)^%s/digits +0 +Training +2 +- `, namespace))
		Expect(plan).To(MatchRegexp(`(?m)^2 jobs, 0 change, 1 waits; \d+ of \d+ devices free$`))

		waits := concertina(ctx, folder, "explain", "huge", "--namespace", namespace)
		Expect(waits).To(ContainSubstring("It waits for room: its gang of 1000 workers starts together or not at all"))
		Expect(waits).To(MatchRegexp(`It would start if \d+ more example.com/gpu were in the cluster`))
		Expect(concertina(ctx, folder, "explain", "tj/digits", "--namespace", namespace)).To(ContainSubstring("It trains with 2 workers"))

		var top console.Top
		Expect(json.Unmarshal([]byte(concertina(ctx, folder, "top", "--namespace", namespace, "--output", "json")), &top)).To(Succeed())
		Expect(top.Jobs).To(HaveLen(2))
		Expect(top.Jobs[0].Name).To(Equal("digits")) // it holds devices, the other one does not
		Expect(top.Totals.Devices).To(Equal(map[string]int64{string(framework.GPU): 2}))
	})
})

// buildPlugin builds kubectl's plugin into a folder of its own.
func buildPlugin(ctx context.Context) string {
	GinkgoHelper()
	folder := GinkgoT().TempDir()
	build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(folder, "kubectl-concertina"), "./cmd/kubectl-concertina")
	build.Dir = cluster.Checkout
	out, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	return folder
}

// concertina runs kubectl with the plugin of a folder, and returns what it prints.
func concertina(ctx context.Context, folder string, args ...string) string {
	GinkgoHelper()
	cmd := exec.CommandContext(ctx, filepath.Join(cluster.Cache, "bin", "kubectl"), append([]string{"concertina"}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+folder+string(os.PathListSeparator)+os.Getenv("PATH"), "KUBECONFIG="+cluster.Kubeconfig)
	var messages bytes.Buffer
	cmd.Stderr = &messages
	out, err := cmd.Output()
	Expect(err).NotTo(HaveOccurred(), "kubectl %v: %s", cmd.Args, &messages)
	return string(out)
}
