package storage

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// However many jobs of one name wrote at whatever times: checkpoints of one job are together, ordered by what goes on from
// what, jobs by when they wrote last, and the order does not depend on that of the listing.
func TestNewestFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small := rapid.Uint64Range(0, 4)
		all := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) Place {
			return Place{
				Job:     Job{"team", "llama", rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "uid")},
				Attempt: rapid.Int32Range(1, 2).Draw(t, "attempt"),
				ID:      checkpoint.ID{Round: small.Draw(t, "round"), Step: small.Draw(t, "step")},
			}
		}), 0, 12, func(p Place) Place { return p }).Draw(t, "places")
		listed := make([]*contents, len(all))
		last := map[Job]time.Time{}
		for i, place := range all {
			listed[i] = &contents{place: place, changed: time.Unix(int64(small.Draw(t, "time")), 0)}
			if listed[i].changed.After(last[place.Job]) {
				last[place.Job] = listed[i].changed
			}
		}
		other := rapid.Permutation(listed).Draw(t, "another order")
		newestFirst(listed)
		newestFirst(other)
		if !slices.Equal(listed, other) {
			t.Fatal("the order is that of the listing")
		}
		done := map[Job]bool{}
		for i := range listed[:max(len(listed)-1, 0)] {
			a, b := listed[i].place, listed[i+1].place
			if a.Job == b.Job {
				if checkpoint.CompareIDs(a.ID, b.ID) < 0 {
					t.Fatalf("%v comes before %v, which is newer", a, b)
				}
				continue
			}
			if done[a.Job] = true; done[b.Job] || last[a.Job].Before(last[b.Job]) {
				t.Fatalf("job %s comes before job %s, or that is in two places", a.Job.UID, b.Job.UID)
			}
		}
	})
}
