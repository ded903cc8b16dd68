package api

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// kubectl runs the command and returns what it prints.
func kubectl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	out, err := tryKubectl(ctx, args...)
	Expect(err).NotTo(HaveOccurred())
	return out
}

func tryKubectl(ctx context.Context, args ...string) (string, error) {
	program := filepath.Join(binaries, "kubectl")
	cmd := exec.CommandContext(ctx, program, append([]string{"--kubeconfig", kubeconfig}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// explain waits for the description of a new kind, which the API server publishes after it serves
// the kind.
func explain(ctx context.Context, field string) string {
	GinkgoHelper()
	var text string
	Eventually(func() (err error) {
		text, err = tryKubectl(ctx, "explain", field)
		return err
	}).WithContext(ctx).WithTimeout(30 * time.Second).WithPolling(200 * time.Millisecond).Should(Succeed())
	return text
}

var _ = Describe("kubectl", func() {
	It("explains the fields with their bounds and defaults, in lines that are not cut twice", func(ctx context.Context) {
		text := explain(ctx, "trainingjob.spec.workers")
		for _, want := range []string{
			"min\t<integer> -required-\n    min is the number of workers that start together or not at all: the gang.\n    From 1 to 10000.",
			"enum: PerProcess, PerWorker",
			"From 1 to 64, default 1.",
			"template\t<Object> -required-\n    template is the pod of one worker.",
		} {
			Expect(text).To(ContainSubstring(want))
		}
		Expect(explain(ctx, "trainingjob.spec.gang.startTimeout")).To(ContainSubstring("From 1s to 168h, default 10m."))
	})

	It("explains the pod template by its names and types", func(ctx context.Context) {
		Expect(explain(ctx, "tj.spec.workers.template.spec.containers.resources")).
			To(ContainSubstring("limits\t<map[string]Object>"))
	})

	It("lists jobs with state, workers, round, step, checkpoint and age, and with queue and reasons when asked", func(ctx context.Context) {
		object := job()
		create(ctx, object)
		set(object, map[string]any{
			"state":      "Training",
			"queue":      map[string]any{"position": int64(77)},
			"workers":    map[string]any{"running": int64(3), "target": int64(3), "summary": "3/2-4"},
			"world":      map[string]any{"term": int64(1), "round": int64(5)},
			"progress":   map[string]any{"step": int64(1832)},
			"checkpoint": map[string]any{"at": time.Now().Add(-30 * time.Minute).UTC().Format(time.RFC3339)},
			"conditions": []any{map[string]any{
				"type": "FullSize", "status": "False", "reason": "NoRoom", "message": "nothing is free",
				"lastTransitionTime": "2026-01-01T00:00:00Z",
			}},
		}, "status")
		Expect(cluster.Status().Update(ctx, object)).To(Succeed())

		lines := strings.Split(kubectl(ctx, "get", "tj", object.GetName()), "\n")
		Expect(strings.Fields(lines[0])).To(Equal([]string{"NAME", "STATE", "WORKERS", "ROUND", "STEP", "CHECKPOINT", "AGE"}))
		Expect(strings.Fields(lines[1])[:6]).To(Equal([]string{object.GetName(), "Training", "3/2-4", "5", "1832", "30m"}))
		Expect(kubectl(ctx, "get", "tj", object.GetName(), "-o", "wide")).To(And(ContainSubstring("NoRoom"), ContainSubstring("77")))
		Expect(kubectl(ctx, "get", "all")).To(ContainSubstring("trainingjob.training.concertina.dev/" + object.GetName()))
	})

	It("scales the ceiling, and says how to release all workers", func(ctx context.Context) {
		object := job()
		create(ctx, object)
		set(object, map[string]any{
			"selector": "training.concertina.dev/job=" + object.GetName(),
			"workers":  map[string]any{"running": int64(3)},
		}, "status")
		Expect(cluster.Status().Update(ctx, object)).To(Succeed())
		name := "tj/" + object.GetName()

		kubectl(ctx, "scale", name, "--replicas", "8")
		Expect(kubectl(ctx, "get", name, "-o", "jsonpath={.spec.workers.max} {.spec.workers.min}")).To(Equal("8 2"))
		scale := kubectl(ctx, "get", name, "--subresource", "scale", "-o",
			"jsonpath={.spec.replicas} {.status.replicas} {.status.selector}")
		Expect(scale).To(Equal("8 3 training.concertina.dev/job=" + object.GetName()))

		for _, below := range []string{"1", "0"} {
			_, err := tryKubectl(ctx, "scale", name, "--replicas", below)
			Expect(err).To(MatchError(ContainSubstring("to release all workers set spec.suspend")), "%s workers", below)
		}
	})

	It("installs the definition server-side, and finds it unchanged the second time", func(ctx context.Context) {
		file := filepath.Join(root, "config", "crd", "bases", "training.concertina.dev_trainingjobs.yaml")
		version := func() string {
			return kubectl(ctx, "get", "crd", "trainingjobs.training.concertina.dev", "-o", "jsonpath={.metadata.generation}")
		}
		kubectl(ctx, "apply", "--server-side", "-f", file)
		before := version()
		kubectl(ctx, "apply", "--server-side", "-f", file)
		Expect(version()).To(Equal(before))

		info, err := os.Stat(file)
		Expect(err).NotTo(HaveOccurred())
		Expect(info.Size()).To(BeNumerically("<", 256<<10), "also client-side apply must be able to hold it in an annotation")
	})

	It("refuses the sample's mistakes with one line each", func(ctx context.Context) {
		cmd := exec.CommandContext(ctx, filepath.Join(binaries, "kubectl"), "--kubeconfig", kubeconfig, "create", "-f", "-")
		cmd.Stdin = strings.NewReader(`
apiVersion: training.concertina.dev/v1alpha1
kind: TrainingJob
metadata: {name: wrong, namespace: default}
spec: {workers: {min: 3, max: 2, template: {spec: {containers: [{name: main, image: digits}]}}}}
`)
		out, err := cmd.CombinedOutput()
		Expect(err).To(HaveOccurred())
		Expect(string(out)).To(And(
			ContainSubstring("spec.workers.max: Invalid value"),
			ContainSubstring("raise max or lower min"),
			ContainSubstring("has no command: set command"),
		))
	})
})
