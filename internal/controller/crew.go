package controller

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// worker is one pod of the current attempt and what is known of it.
type worker struct {
	pod    *corev1.Pod
	seen   rendezvous.MemberObservation
	stands standing
	// past is true when it had ended before this operator first looked at the job: whatever it was, it is not coming.
	past bool
	// leaving says why it should be in no world any more, why the same in words; leaveBy is when it
	// will be killed, zero when it can take its time.
	leaving rendezvous.Reason
	why     string
	leaveBy time.Time
	// lost says how we know that it will make no step any more; ended that its processes are
	// certainly gone.
	lost  string
	ended bool
	// loss is what the rendezvous says of its loss; nil for nothing.
	loss *rendezvous.Loss
	// stuck says why its containers cannot start.
	stuck string
	// withdrawn is true when it leaves because it did not start in time.
	withdrawn bool
}

func (w *worker) bound() bool { return w.pod.Spec.NodeName != "" }

// inWorld says whether it has a rank in the current world, or may have.
func (w *worker) inWorld() bool { return w.stands.rank >= 0 || w.stands.open }

// alive says whether it may make a step, or could in a next world.
func (w *worker) alive() bool { return w.bound() && !w.ended && w.lost == "" }

// stays says whether it is to be in the next world, or on its way there.
func (w *worker) stays() bool { return !w.ended && w.lost == "" && w.leaving == "" }

// newcomer says whether it was in no world yet.
func (w *worker) newcomer() bool {
	return !w.inWorld() && !w.seen.Out && !w.seen.WasIn && !w.past && w.seen.LostIn == 0 && (w.loss == nil || w.loss.Round == 0)
}

// starting says whether a newcomer, or one whose programs are started anew, should be ready soon.
func (w *worker) starting() bool {
	return w.alive() && w.leaving == "" && (w.newcomer() || w.seen.Stays) && !w.seen.Standby && w.stuck == ""
}

// crew looks at all pods of the attempt. Those that are too many are marked as leaving too.
func (p *planner) crew(pods []*corev1.Pod) []worker {
	crew := make([]worker, 0, len(pods))
	for _, pod := range pods {
		w := worker{pod: pod, seen: p.member(pod), stands: p.standing(pod), loss: p.lossOf(pod), stuck: stuckPods([]*corev1.Pod{pod})}
		w.past = podEnded(pod) && !w.seen.Joined && p.endedBefore(pod, p.Memory.Since)
		w.lost, w.ended = p.lostWorker(&w)
		if !w.ended {
			w.leaving, w.why, w.leaveBy = p.whyLeaving(&w)
			p.keepSince(&w)
		}
		if left := p.returns(pod); left > 0 && !w.seen.Standby {
			p.lookAgain(left)
		}
		crew = append(crew, w)
	}
	p.holdBack(crew)
	p.withdraw(crew)
	p.markSurplus(crew)
	return crew
}

// holdBack has those stay for now who are marked as leaving, and whom the durable target still counts: that
// falls before the rendezvous is told. It does so at once, and when it does not, nobody waits for it long.
func (p *planner) holdBack(crew []worker) {
	if p.target() <= count(crew, (*worker).stays) {
		return
	}
	for i := range crew {
		w := &crew[i]
		if !forOthers(w.leaving) || p.Memory.Elastic.Told[string(w.pod.UID)] {
			continue
		}
		if left := p.markedSince(w.pod).Add(markedOnly).Sub(p.Now); left > 0 {
			w.leaving, w.why, w.leaveBy = "", "", time.Time{}
			p.lookAgain(left)
		}
	}
}

// markedOnly is how long a worker may be marked as leaving before the target falls.
const markedOnly = 5 * time.Second

func count(crew []worker, fits func(*worker) bool) int32 {
	var n int32
	for i := range crew {
		if fits(&crew[i]) {
			n++
		}
	}
	return n
}

// legal is the largest legal number of workers up to n, spares among them; 0 when none is.
func (s *State) legal(n int32) int32 { return s.Job.Spec.Workers.Most(n) }

// members is what the rendezvous is told of the crew. A worker that has ended is left out once the
// world goes on without it.
func members(crew []worker, round uint64) []rendezvous.Member {
	var all []rendezvous.Member
	for i := range crew {
		w := &crew[i]
		if !w.bound() || w.ended && w.accounted(round) {
			continue
		}
		all = append(all, rendezvous.Member{
			UID: string(w.pod.UID), Name: w.pod.Name, Ordinal: podOrdinal(w.pod), Node: w.pod.Spec.NodeName,
			Leaving: w.leaving, Why: leavingFor(w), LeaveBy: w.leaveBy, Lost: w.lost, Ended: w.ended, Starting: w.starting(),
		})
	}
	slices.SortFunc(all, func(a, b rendezvous.Member) int { return int(a.Ordinal - b.Ordinal) })
	return all
}

// expectCrew has the rendezvous expect a crew, and know who of those that it is not to expect any more has ended.
func (p *planner) expectCrew(crew []worker, round uint64) {
	p.expect(members(crew, round))
	p.plan.Actions.Expect.Ended = p.over(crew, round)
}

// over are those who have ended, and of whom the rendezvous is told no more: what one of them held others may still try to get.
func (p *planner) over(crew []worker, round uint64) []string {
	uids := slices.Clone(p.Memory.Ended)
	for i := range crew {
		if w := &crew[i]; w.bound() && w.ended && w.accounted(round) {
			uids = append(uids, string(w.pod.UID))
		}
	}
	return uids
}

// leavingFor says for whom a worker leaves, where the reason does not say all.
func leavingFor(w *worker) string {
	if forOthers(w.leaving) {
		return w.why
	}
	return ""
}

// accounted says whether a worker that has ended or was lost matters to the round no more.
func (w *worker) accounted(round uint64) bool {
	if w.inWorld() {
		return false
	}
	return w.loss == nil || w.loss.Round < round
}
