package controller

import (
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// reportStragglers brings status.stragglers up to date, and tells of each process once when it is named. As long as this
// leader has not looked for long enough to find any, what the one before has found stays.
func (p *planner) reportStragglers() {
	if len(p.World.Stragglers) == 0 && !p.World.Watched {
		return
	}
	var all []v1alpha1.Straggler
	for _, seen := range p.World.Stragglers {
		one := v1alpha1.Straggler{
			Rank: ptr.To(seen.Rank), Pod: seen.Name, Node: seen.Node, Since: ptr.To(metav1.NewTime(seen.Since)),
			Factor: strconv.FormatFloat(float64(seen.Own)/float64(seen.Median), 'f', 2, 64),
		}
		if !slices.ContainsFunc(p.Job.Status.Stragglers, p.isProcess(&one)) {
			p.note(corev1.EventTypeWarning, v1alpha1.EventStraggler, "rank %d, in %s on node %s, works %s times as long in a step as most ranks do "+
				"(%s, they %s), for minutes, and every step waits for it", seen.Rank, one.Pod, one.Node, one.Factor,
				seen.Own.Round(time.Microsecond), seen.Median.Round(time.Microsecond))
		}
		all = append(all, one)
	}
	p.plan.Status.Stragglers = all
}

// isProcess says whether another entry is of the same process: its rank may be another one in another world.
func (p *planner) isProcess(one *v1alpha1.Straggler) func(v1alpha1.Straggler) bool {
	each := max(value(p.Job.Spec.Workers.ProcessesPerWorker), 1)
	return func(other v1alpha1.Straggler) bool {
		return other.Pod == one.Pod && value(other.Rank)%each == value(one.Rank)%each
	}
}
