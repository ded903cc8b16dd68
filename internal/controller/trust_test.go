package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

func TestThePodCarriesWhatItsAgentTrusts(t *testing.T) {
	job := jobWith(func(job *v1alpha1.TrainingJob) {
		job.Spec.Workers.Template.Annotations = map[string]string{v1alpha1.AnnotationCABundle: "somebody else's", "theirs": "stays"}
	})
	with := settings
	with.CABundle = "bundle"
	for _, pod := range []*corev1.Pod{newPod(job, with, 1, 0), newGrowthPod(job, with, 1, 2)} {
		if pod.Annotations[v1alpha1.AnnotationCABundle] != "bundle" || pod.Annotations["theirs"] != "stays" {
			t.Errorf("%s is annotated %v", pod.Name, pod.Annotations)
		}
		found := false
		for _, volume := range pod.Spec.Volumes {
			if volume.Name != "concertina-identity" {
				continue
			}
			for _, source := range volume.Projected.Sources {
				if source.DownwardAPI == nil {
					continue
				}
				item := source.DownwardAPI.Items[0]
				found = item.Path == "ca.crt" && item.FieldRef.FieldPath == "metadata.annotations['training.concertina.dev/ca-bundle']"
			}
		}
		if !found {
			t.Errorf("%s: the identity holds no ca.crt from the annotation: %+v", pod.Name, pod.Spec.Volumes)
		}
	}
}

func TestWhoIsGivenANewAuthority(t *testing.T) {
	job := jobWith(running)
	has := func(bundle string) podChange {
		return func(pod *corev1.Pod) { pod.Annotations[v1alpha1.AnnotationCABundle] = bundle }
	}
	state := stateOf(job,
		podOf(job, 1, 0, trainerRuns, has("new")),
		podOf(job, 1, 1, trainerRuns, has("old")),
		podOf(job, 1, 2, trainerRuns, has("old"), deletedAt(start.Add(time.Minute))),
		podOf(job, 1, 3, exited(0, start, ""), has("old")))
	var names []string
	for _, pod := range distrustful(state, "new") {
		names = append(names, pod.Name)
	}
	if len(names) != 2 || names[0] != "digits-1-1" || names[1] != "digits-1-2" {
		t.Errorf("given to %v, want those that have not ended and have another", names)
	}
}
