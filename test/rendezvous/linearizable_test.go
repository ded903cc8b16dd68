package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/record/recordtest"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// TestRecordIsLinearizable has several leaders take a job over from each other and make rounds, and give some of
// their writes up before they are answered: what all of them were told must have an order.
func TestRecordIsLinearizable(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	key, history := newJob(t, newNamespace(t)), &recordtest.History{}
	var leaders sync.WaitGroup
	for number := range 4 {
		leaders.Go(func() {
			leadAndGiveUp(t, key, history, fmt.Sprint("leader ", number), rand.New(rand.NewPCG(seed, uint64(number))))
		})
	}
	leaders.Wait()
	// A last write that is answered sees what all the others have come to.
	last := durable(t.Context(), t, key)
	next := last
	next.Term++
	found, err := recorder().Record(t.Context(), key, last, next)
	if err != nil {
		t.Fatal(err)
	}
	history.Wrote(last, next)(found, err)
	writes, unclear, err := history.Check()
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d writes, %d of them unclear", writes, unclear)
}

// leadAndGiveUp writes 40 records over what it has found last.
func leadAndGiveUp(t *testing.T, key rendezvous.JobKey, history *recordtest.History, name string, random *rand.Rand) {
	expected := rendezvous.Record{}
	for range 40 {
		next := expected
		next.Leader = name
		if expected.Leader == name && random.IntN(2) == 0 {
			next.Round, next.Attempt, next.Workers, next.Processes = expected.Round+1, 1, 1, 1
			next.MembersDigest, next.StartedAt = round(0, 0).MembersDigest, round(0, 0).StartedAt
		} else {
			next.Term++
		}
		ctx, cancel := context.WithCancel(t.Context())
		if random.IntN(4) == 0 {
			time.AfterFunc(time.Duration(random.IntN(20_000))*time.Microsecond, cancel)
		}
		answered := history.Wrote(expected, next)
		found, err := recorder().Record(ctx, key, expected, next)
		answered(found, err)
		cancel()
		switch {
		case err == nil, errors.Is(err, rendezvous.ErrDeposed):
			expected = found
		case errors.Is(err, rendezvous.ErrJobGone):
			t.Errorf("%s: %v", name, err)
			return
		}
	}
}
