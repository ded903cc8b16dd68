package rendezvous

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// Real agents and programs, one of which is a spare: started, with its program waiting for a world. A worker is lost for good, and
// the very next world has the spare in it, and the same size. Then there is no other spare, and the next loss makes the world smaller.
func TestASpareTakesThePlaceOfALostWorker(t *testing.T) {
	s := newSharing(t, "yes", 4)
	s.spares = 1
	for range 4 {
		s.start()
	}
	s.expect()
	round, _ := s.trains(3)
	spare := -1
	eventually(t, "the fourth is ready, and in no world", func() bool {
		seen := s.leader.Observe(s.team.key)
		spare = slices.IndexFunc(s.team.pods, func(pod *corev1.Pod) bool { return seen.Members[string(pod.UID)].Standby })
		return spare >= 0
	})
	lose := func(number int, left int32) {
		t.Helper()
		s.workers[number].kill()
		s.workers[number].lost = true
		s.expect()
		eventually(t, "the next world trains", func() bool {
			now, _, does := s.training(left)
			if !does || now == round {
				return false
			}
			round = now
			return true
		})
	}
	before := len(s.rounds.all())
	lose((spare+1)%4, 3)
	seen := s.leader.Observe(s.team.key)
	if seen.Members[string(s.team.pods[spare].UID)].WorkerRank < 0 {
		t.Errorf("the spare is in no world: %+v", seen.Members)
	}
	for _, made := range s.rounds.all()[before:] {
		if made.Workers != 3 || made.Reason != rendezvous.ReasonWorkerLost {
			t.Errorf("after the loss round %d of %d workers was made (%s)", made.Round, made.Workers, made.Reason)
		}
	}
	last := seen.Changes[len(seen.Changes)-1]
	if last.From != 3 || last.To != 3 || last.Joined != s.team.pods[spare].Name {
		t.Errorf("the change is told as %+v", last)
	}
	lose((spare+2)%4, 2)
}
