package integration

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/share"
)

// measure has all members of the world say that their state has so many bytes, all of which each of them writes.
func (w *worlds) measure(job rendezvous.JobKey, bytes uint64) error {
	return w.report(job, func(seen *rendezvous.Observation) {
		seen.Size = share.Size{State: bytes, Written: bytes}
		for uid, member := range seen.Members {
			member.Written = bytes
			seen.Members[uid] = member
		}
	})
}

// expectVolume checks how large the volume of a worker is, which has a GiB beside it.
func expectVolume(pod *corev1.Pod, size string) {
	GinkgoHelper()
	volume, request := resource.MustParse(size), resource.MustParse("1Gi")
	var found *resource.Quantity
	for _, v := range pod.Spec.Volumes {
		if v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumMemory {
			found = v.EmptyDir.SizeLimit
		}
	}
	Expect(found).NotTo(BeNil(), pod.Name)
	Expect(found.Value()).To(Equal(volume.Value()), pod.Name)
	request.Add(volume)
	Expect(pod.Spec.Containers[0].Resources.Requests.Memory().Value()).To(Equal(request.Value()), pod.Name)
}

var _ = Describe("A job whose volumes the operator chooses", func() {
	It("begins anew with volumes that its state fits into, once, and the next operator knows what they need", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		node := elasticNode(ctx, namespace, 3)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace, upTo(2, node), func(object *v1alpha1.TrainingJob) {
			object.Spec.Workers.Template.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("1Gi")
		})
		for _, pod := range j.trainOn(ctx, op, node) {
			expectVolume(pod, "512Mi")
		}
		Expect(op.worlds.measure(j.key(), 1<<30)).To(Succeed())
		Eventually(op.all).Should(ContainElement(And(HavePrefix("event Warning VolumesEnlarged: attempt 1 ended: digits-1-0 has 512Mi for its snapshots and needs 3Gi"),
			ContainSubstring("begins anew with volumes of 3264Mi"))))
		Expect(j.get(ctx).Status.Checkpoint.Size.State).To(HaveValue(BeEquivalentTo(1 << 30)))
		Eventually(op.all).Should(ContainElement("delete Pod digits-1-1"))
		Eventually(func() int { reap(ctx, namespace); return len(j.pods(ctx, 1)) }).Should(BeZero())
		pods := j.gangOf(ctx, 2)
		for _, pod := range pods {
			expectVolume(pod, "3264Mi")
		}
		var group schedv1alpha1.PodGroup
		Expect(cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "digits-2"}, &group)).To(Succeed())
		Expect(group.Spec.MinResources.Memory().Value()).To(BeNumerically(">=", int64(2*(1024+3264)<<20)))
		Expect(j.get(ctx).Status.Restarts).To(Equal(v1alpha1.RestartsStatus{}))

		op.stop()
		op = startOperator(ctx, namespace, settings{})
		for _, pod := range pods {
			schedule(ctx, pod)
			kubelet(ctx, pod, runs)
		}
		Eventually(func() error { return op.worlds.form(j.key(), 2) }).Should(Succeed())
		Expect(op.worlds.report(j.key(), func(seen *rendezvous.Observation) {
			seen.Elastic, seen.Phase = true, rendezvous.PhaseTraining
		})).To(Succeed())
		Expect(op.worlds.measure(j.key(), 1<<30)).To(Succeed())
		Eventually(j.condition(ctx, v1alpha1.ConditionSnapshotsFit)).Should(HavePrefix("True VolumesFit:"))

		// It has outgrown those as well: that is told, and who comes has what is needed.
		Expect(op.worlds.measure(j.key(), 8<<30)).To(Succeed())
		Eventually(j.condition(ctx, v1alpha1.ConditionSnapshotsFit)).Should(And(HavePrefix("False VolumeTooSmall: digits-2-2 has 3264Mi"), ContainSubstring("have 26112Mi")))
		Eventually(op.all).Should(ContainElement(HavePrefix("event Warning VolumeTooSmall: ")))
		Expect(j.update(ctx, func(object *v1alpha1.TrainingJob) { object.Spec.Workers.Max = ptr.To[int32](3) })).To(Succeed())
		Eventually(func() []*corev1.Pod { pods = j.pods(ctx, 2); return pods }).Should(HaveLen(3))
		for _, pod := range pods {
			if pod.Labels[v1alpha1.LabelRole] == v1alpha1.RoleGrowth {
				expectVolume(pod, "26112Mi")
			} else {
				expectVolume(pod, "3264Mi")
			}
		}
		Expect(j.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(2)))
	})
})
