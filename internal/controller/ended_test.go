package controller

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// Whom the world goes on without is named no more once it has ended, and the rendezvous is told that it has: others may still try to get
// what it held.
func TestWhoHasEndedIsSaidToHave(t *testing.T) {
	job := trains(3)
	pods := crewOf(job)
	exited(1, now, "")(pods[2])
	state := elasticState(job, pods...)
	uid := string(pods[2].UID)
	for name, c := range map[string]struct {
		seen  rendezvous.MemberObservation
		ended bool
	}{
		"it is in the world":  {seen: rendezvous.MemberObservation{Joined: true, WorkerRank: 2, InWorld: true}},
		"it is in it no more": {seen: rendezvous.MemberObservation{Joined: true, WorkerRank: -1, WasIn: true}, ended: true},
	} {
		state.World.Members[uid] = c.seen
		told := look(state).Actions.Expect
		i := slices.IndexFunc(told.Members, func(m rendezvous.Member) bool { return m.UID == uid })
		switch said := slices.Contains(told.Ended, uid); {
		case said != c.ended, (i >= 0) == c.ended:
			t.Errorf("%s: the rendezvous is told of %+v, and that %v have ended", name, told.Members, told.Ended)
		case i >= 0 && !told.Members[i].Ended:
			t.Errorf("%s: it has ended, and is told of as %+v", name, told.Members[i])
		}
	}
}

// So it is of pods that were gone before anybody looked: their last state says whether they had ended. As many are kept as may matter.
func TestWhoHadEndedWhenItsPodWent(t *testing.T) {
	job := trains(2)
	r := &Reconciler{Now: func() time.Time { return now }}
	r.memory.update(job.UID, func(m *Memory) { m.Since = now })
	r.podGone(podOf(job, 1, 7, trainerRuns))
	if ended := r.memory.of(job.UID).Ended; len(ended) > 0 {
		t.Fatalf("%v have ended", ended)
	}
	var last *corev1.Pod
	for ordinal := range int32(keptEnded + 3) {
		last = podOf(job, 1, 10+ordinal, exited(143, now, ""), deletedAt(now))
		r.podGone(last)
	}
	state := elasticState(job, crewOf(job)...)
	state.Memory = r.memory.of(job.UID)
	ended := look(state).Actions.Expect.Ended
	if len(ended) != keptEnded || ended[keptEnded-1] != string(last.UID) {
		t.Errorf("the rendezvous is told that %v have ended", ended)
	}
}
