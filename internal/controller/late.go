package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// late says whether the job will miss its deadline with the workers that it has, as the last plan that is known says.
func (p *planner) late() bool {
	return p.Grant.Known && p.Grant.Late
}

// setLate says so in FullSize: with how many workers it would be in time is what its user can do something about, also where it has all
// that it may have.
func (p *planner) setLate(full metav1.ConditionStatus, before string) {
	old := meta.FindStatusCondition(p.plan.Status.Conditions, v1alpha1.ConditionFullSize)
	if old != nil && old.Status == full && p.sizeToldLately(v1alpha1.ReasonLate) {
		return
	}
	p.set(v1alpha1.ConditionFullSize, full, v1alpha1.ReasonLate, before+p.withVolumes(p.withAvoided(p.Grant.Why)))
	p.plan.SizeTold = true
}

// andLate follows on what keeps the job from more workers. It is the same words each time: they are not worth a write.
func (p *planner) andLate() string {
	if p.late() {
		return ". With the workers that it has it will miss its deadline"
	}
	return ""
}

// tellLate tells once that the job will miss its deadline, while it trains or waits.
func (p *planner) tellLate() {
	old := meta.FindStatusCondition(p.plan.Status.Conditions, v1alpha1.ConditionFullSize)
	if p.Grant.Known && p.Grant.Late && !p.Memory.LateTold && (old == nil || old.Reason != v1alpha1.ReasonLate) {
		p.note(corev1.EventTypeWarning, v1alpha1.EventLate, "%s", p.Grant.Why)
	}
}
