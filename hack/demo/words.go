package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/demo/live"
	"github.com/concertina-dev/concertina/hack/demo/platform"
)

const (
	// example is the job that the demonstration submits.
	example, exampleName = "examples/pytorch-digits/job.yaml", "digits"
	// longJob trains for minutes, for those who want to interfere.
	longJob, longName = "hack/demo/long.yaml", "digits-long"
	// urgentJob takes some of its workers back, and returns them.
	urgentJob   = "hack/demo/urgent.yaml"
	stopCluster = "go run ./hack/cluster down"
)

// next is what to try after a demonstration that went well. Every line of it works as it stands,
// in the checkout.
func next(p *platform.Platform, job *v1alpha1.TrainingJob) string {
	return strings.Join([]string{
		"What to try next. First, for kubectl in this checkout:",
		"",
		"    " + environment(p),
		"",
		"Look at what happened:",
		"",
		"    kubectl get tj " + job.Name + " -o wide",
		"    kubectl describe tj " + job.Name + "      # conditions and events say why, in words",
		"    kubectl logs -l " + v1alpha1.LabelJob + "=" + job.Name + " --tail=3",
		"    kubectl explain tj.spec.workers",
		"",
		"Start a job that trains for about ten minutes, and watch it:",
		"",
		"    kubectl apply -f " + longJob,
		"    go run ./hack/demo watch " + longName,
		"",
		"Interfere from a second terminal:",
		"",
		"    kubectl delete pod " + longName + "-1-0     # a worker is lost: the others go on, and another one joins",
		"    kubectl apply -f " + urgentJob + "     # a job of higher priority takes back what the first one has grown over",
		"    go run ./cmd/kubectl-concertina explain " + longName + "     # why it has the size that it has",
		"    kubectl -n " + platform.Namespace + " delete pod --all     # the operator is gone, the training goes on",
		"    kubectl patch tj " + longName + ` --type=merge -p '{"spec":{"suspend":true}}'     # false starts it again`,
		"    go run ./hack/cluster node kill node-1     # a power failure; node add node-1 brings it back",
		"",
		"Stop the cluster, with everything in it:",
		"",
		"    " + stopCluster,
	}, "\n")
}

// stillRunning says what an interrupted demonstration leaves behind, and how to end that.
func stillRunning(p *platform.Platform) string {
	switch p.Reached() {
	case platform.ClusterUp:
		return "Interrupted. The cluster is still running, and a job that was submitted trains on.\n\n" +
			"    " + environment(p) + "\n" +
			"    go run ./hack/demo watch " + exampleName + "      # go on watching\n" +
			"    " + stopCluster + "         # stop the cluster, with everything in it"
	case platform.ClusterStarting:
		return "Interrupted while the cluster was starting. What was started has been taken down again;\n" +
			"`go run ./hack/cluster status` shows what runs, `" + stopCluster + "` ends it."
	default:
		return "Interrupted before the cluster was touched. `make demo` goes on where it stopped."
	}
}

// failure is the error of a job that has failed.
func failure(p *platform.Platform, job *v1alpha1.TrainingJob, model live.Model) error {
	why := "it does not say why"
	for _, condition := range model.Conditions {
		if condition.Type == v1alpha1.ConditionFailed {
			why = condition.Reason + ": " + condition.Message
		}
	}
	return fmt.Errorf("TrainingJob %s has failed: %s\n  see %s", job.Name, why, kubectl(p, "describe tj "+job.Name))
}

func kubectl(p *platform.Platform, command string) string {
	return "KUBECONFIG=" + p.Kubeconfig + " " + p.Relative(p.Binary("kubectl")) + " " + command
}

// environment is the line that makes kubectl find itself and the cluster.
func environment(p *platform.Platform) string {
	return "export KUBECONFIG=" + p.Kubeconfig + ` PATH="` + filepath.Dir(p.Binary("kubectl")) + `:$PATH"`
}
