package controller

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// mostFactor bounds the factor that is told: the field has room for no more, and nobody needs to know.
const mostFactor = 9999.99

// reportStragglers brings status.stragglers up to date, and tells of each process once when it is named. As long as this
// leader has not looked for long enough to find any, what the one before has found stays.
func (p *planner) reportStragglers() {
	if len(p.World.Stragglers) == 0 && !p.World.Watched {
		return
	}
	known, told := map[string]bool{}, map[string]bool{}
	for i := range p.Job.Status.Stragglers {
		known[p.processOf(&p.Job.Status.Stragglers[i])] = true
	}
	var all []v1alpha1.Straggler
	for _, seen := range p.World.Stragglers {
		one := v1alpha1.Straggler{
			Rank: ptr.To(seen.Rank), Pod: seen.Name, Node: seen.Node, Since: ptr.To(metav1.NewTime(seen.Since)),
			Factor: strconv.FormatFloat(min(float64(seen.Own)/float64(seen.Median), mostFactor), 'f', 2, 64),
		}
		process := p.processOf(&one)
		// The status alone does not say who was told of: an API server whose CRD is older drops the field.
		if !known[process] && !p.plan.Elastic.Stragglers[process] {
			p.note(corev1.EventTypeWarning, v1alpha1.EventStraggler, "rank %d, in %s on node %s, works %s times as long in a step as most ranks do "+
				"(%s, they %s), for minutes, and every step waits for it", seen.Rank, one.Pod, one.Node, one.Factor,
				seen.Own.Round(time.Microsecond), seen.Median.Round(time.Microsecond))
		}
		told[process] = true
		all = append(all, one)
	}
	p.plan.Status.Stragglers, p.plan.Elastic.Stragglers = all, told
}

// forgetStragglers drops those from the status whose worker is gone, or about to go, or of an attempt before: nobody waits
// for them any more. It does not wait for progress that is to be written, nor for a leader that has looked for long enough.
func (p *planner) forgetStragglers() {
	if len(p.plan.Status.Stragglers) == 0 {
		return
	}
	workers := map[string]bool{}
	for _, pod := range p.unharmed() {
		workers[pod.Name] = !p.givenUp(pod)
	}
	p.plan.Status.Stragglers = slices.DeleteFunc(p.plan.Status.Stragglers, func(one v1alpha1.Straggler) bool { return !workers[one.Pod] })
}

// processOf names the process of an entry: its rank may be another one in another world.
func (p *planner) processOf(one *v1alpha1.Straggler) string {
	return fmt.Sprintf("%s/%d", one.Pod, value(one.Rank)%max(value(p.Job.Spec.Workers.ProcessesPerWorker), 1))
}
