package e2e

import (
	"context"
	"fmt"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// world waits for a world of so many workers that trains, with a round above one, and returns its round.
func (j *job) world(ctx context.Context, above int64, workers int32) int64 {
	GinkgoHelper()
	var round int64
	Eventually(func(g Gomega) {
		status := j.get(ctx).Status
		g.Expect(status.World).NotTo(BeNil())
		g.Expect(status.World.Round).To(HaveValue(BeNumerically(">", above)))
		g.Expect(status.World.Workers).To(HaveValue(Equal(workers)))
		g.Expect(j.condition(ctx, v1alpha1.ConditionTraining)()).To(HavePrefix("True WorldFormed"))
		round = *status.World.Round
	}).Should(Succeed())
	return round
}

// resize is the entry of a round in the job's history.
func (j *job) resize(ctx context.Context, round int64) v1alpha1.Resize {
	GinkgoHelper()
	var found v1alpha1.Resize
	Eventually(func(g Gomega) {
		resizes := j.get(ctx).Status.Resizes
		i := slices.IndexFunc(resizes, func(r v1alpha1.Resize) bool { return r.Round != nil && *r.Round == round })
		g.Expect(i).To(BeNumerically(">=", 0), "round %d in %+v", round, resizes)
		found = resizes[i]
	}).Should(Succeed())
	return found
}

// members are the pods of the current world that are not about to go.
func (j *job) members(ctx context.Context) []corev1.Pod {
	GinkgoHelper()
	ranks := j.ranks(ctx)
	return slices.DeleteFunc(j.pods(ctx, 0), func(pod corev1.Pod) bool {
		_, member := ranks[pod.Name]
		return !member || pod.DeletionTimestamp != nil || framework.Ended(&pod)
	})
}

// ranks are the worker ranks in the newest world, by the names of its members' pods.
func (j *job) ranks(ctx context.Context) map[string]int {
	GinkgoHelper()
	named, attempt := record.Ranks(j.get(ctx))
	ranks := map[string]int{}
	for ordinal, rank := range named {
		ranks[fmt.Sprintf("%s-%d-%d", j.name, attempt, ordinal)] = int(rank)
	}
	return ranks
}

// membersOf are the members once the newest world has so many, and none of them is about to go.
func (j *job) membersOf(ctx context.Context, workers int) []corev1.Pod {
	GinkgoHelper()
	var members []corev1.Pod
	Eventually(func() []corev1.Pod {
		members = j.members(ctx)
		return members
	}).Should(HaveLen(workers))
	return members
}

// writers are those of the members that surely hold the newest snapshot: the lowest rank of each node. When all
// are on one node the second lowest does too; no test relies on it.
func writers(members []corev1.Pod, ranks map[string]int) map[types.UID]bool {
	lowest := map[string]*corev1.Pod{}
	for i := range members {
		node := members[i].Spec.NodeName
		if first := lowest[node]; first == nil || ranks[members[i].Name] < ranks[first.Name] {
			lowest[node] = &members[i]
		}
	}
	all := map[types.UID]bool{}
	for _, pod := range lowest {
		all[pod.UID] = true
	}
	return all
}

// expendable are those pods after whose sudden loss one of the holders of a snapshot is left.
func expendable(pods []corev1.Pod, holders map[types.UID]bool) []corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod corev1.Pod) bool {
		return !slices.ContainsFunc(pods, func(other corev1.Pod) bool { return other.UID != pod.UID && holders[other.UID] })
	})
}

func uids(pods []corev1.Pod) []types.UID {
	var all []types.UID
	for _, pod := range pods {
		all = append(all, pod.UID)
	}
	return all
}
