package reclaim

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/bench/contexts"
)

const (
	lowName = "bench-low"
	// endless is a training that nobody waits for the end of.
	endless = "--epochs=1000000"
	// lowStepTime leaves the machine to those that are measured: there are twelve ranks on few cores.
	lowStepTime = "--step-time=250ms"
	// reclaimed is the reason of a change in status.resizes that made room for another job.
	reclaimed = "Reclaimed"
)

// lender is the job of low priority that grows over the whole cluster.
type lender struct {
	Bench
	job    *v1alpha1.TrainingJob
	ledger *ledger
}

// lend submits the low job. It is a new one each time: what is reclaimed from one job more than once is
// grown back later each time.
func (b Bench) lend(ctx context.Context) (*lender, error) {
	job := b.program(lowName, least, all, endless, lowStepTime, "--ledger")
	if err := b.Cluster.Delete(ctx, job); err != nil {
		return nil, err
	}
	if err := b.Cluster.Client.Create(ctx, job); err != nil {
		return nil, fmt.Errorf("submit TrainingJob %s: %w", job.Name, err)
	}
	return &lender{Bench: b, job: job, ledger: newLedger()}, nil
}

// width waits until the low job has made steps in a world of so many ranks after a round: until its status
// tells of such a world, and then until its ranks have written down that they are in it.
func (l *lender) width(ctx context.Context, above uint64, ranks int32) (wide, error) {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	for {
		job := &v1alpha1.TrainingJob{}
		if err := l.Cluster.Client.Get(ctx, client.ObjectKeyFromObject(l.job), job); err != nil {
			return wide{}, fmt.Errorf("wait for %d workers of TrainingJob %s: %w", ranks, l.job.Name, err)
		}
		if w := job.Status.World; w != nil && uint64(ptr.Deref(w.Round, 0)) > above && ptr.Deref(w.Workers, 0) == ranks {
			if err := l.read(ctx, client.MatchingLabels{v1alpha1.LabelJob: l.job.Name}, func(_, line string) { l.ledger.line(line) }); err != nil {
				return wide{}, err
			}
			if found := l.ledger.reached(above, int(ranks)); found.round > 0 {
				return found, nil
			}
		}
		if err := contexts.Pause(ctx, lookEvery); err != nil {
			return wide{}, errors.Join(fmt.Errorf("no world of %d ranks made a step after round %d: %w", ranks, above, err), l.situation(l.job))
		}
	}
}

// losses is how many steps the reclaims after a round have cost: by the job's status, and by what its
// ranks have written down. No reclaim at all is an error: something else has made the room.
func (l *lender) losses(ctx context.Context, above uint64) (lost, repeated int64, err error) {
	job := &v1alpha1.TrainingJob{}
	if err := l.Cluster.Client.Get(ctx, client.ObjectKeyFromObject(l.job), job); err != nil {
		return 0, 0, fmt.Errorf("read TrainingJob %s: %w", l.job.Name, err)
	}
	rounds, lost := reclaims(job.Status.Resizes, above)
	if len(rounds) == 0 {
		return 0, 0, fmt.Errorf("TrainingJob %s has made room without a change of the reason %s: %+v", job.Name, reclaimed, reasons(job.Status.Resizes))
	}
	for _, round := range rounds {
		repeated += l.ledger.repeated(round)
	}
	return lost, repeated, nil
}

// reclaims are the rounds after one that reclaims led to, and how many steps were lost by them.
func reclaims(resizes []v1alpha1.Resize, above uint64) (rounds []uint64, lost int64) {
	for _, r := range resizes {
		if round := uint64(ptr.Deref(r.Round, 0)); round > above && r.Reason == reclaimed {
			rounds = append(rounds, round)
			lost += ptr.Deref(r.StepsLost, 0)
		}
	}
	return rounds, lost
}

func reasons(resizes []v1alpha1.Resize) []string {
	var all []string
	for _, r := range resizes {
		all = append(all, fmt.Sprintf("%d to %d %s", ptr.Deref(r.From, 0), ptr.Deref(r.To, 0), r.Reason))
	}
	return all
}

func (l *lender) remove(ctx context.Context) error {
	return contexts.Cleared(ctx, patience, func(ctx context.Context) error { return l.Cluster.Delete(ctx, l.job) })
}
