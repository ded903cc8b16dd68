package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

var _ = Describe("A job that a quota has no room for", short, func() {
	It("leaves no pod behind, says which quota and by how much, and runs once the quota is gone", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		history, err := cluster.WatchPods(ctx, namespace, nil)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(history.Stop)
		quota := &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "team"},
			Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")}},
		}
		Expect(cluster.Create(ctx, quota)).To(Succeed())
		Eventually(func() corev1.ResourceList {
			Expect(cluster.Get(ctx, client.ObjectKeyFromObject(quota), quota)).To(Succeed())
			return quota.Status.Hard
		}).Should(HaveKey(corev1.ResourcePods))

		j := submit(ctx, namespace, framework.NewJob("digits", "--epochs=1").Workers(3, 3))
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(Equal(
			"False QuotaExceeded: ResourceQuota team allows 2 pods, 0 are used and the gang of 3 needs 3: 1 too few"))
		Expect(leftIn(ctx, namespace)).To(BeEmpty())
		changes, err := history.Changes()
		Expect(err).NotTo(HaveOccurred())
		Expect(changes).To(BeEmpty(), "no pod may have been made at any time")

		Expect(cluster.Delete(ctx, quota)).To(Succeed())
		j.completes(ctx, time.Minute)
		Expect(j.condition(ctx, v1alpha1.ConditionAdmitted)()).To(HavePrefix("True Admitted"))
		j.expectRestarts(ctx, 0, 0)
	})
})
