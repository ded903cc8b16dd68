package peers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// contender is one way to train.
type contender interface {
	// add brings one more member.
	add(ctx context.Context) (*member, error)
	// spares is how many of the first members are never killed.
	spares() int
	// stop ends what there is beside the members.
	stop() error
}

// trial is a training that is being changed.
type trial struct {
	contender
	name    string
	size    int
	members []*member
	// round is the world that they were in when they settled last.
	round uint64
	say   func(format string, args ...any)
}

// run kills a member and adds one, so many times. What was measured before an error counts.
func (t *trial) run(ctx context.Context, times int) (killed, grown []sample, err error) {
	if err := t.begin(ctx); err != nil {
		return nil, nil, err
	}
	return t.changes(ctx, times)
}

// begin starts as many members as there are, and waits until they train.
func (t *trial) begin(ctx context.Context) error {
	for range t.size {
		if err := t.grow(ctx); err != nil {
			return err
		}
	}
	return t.settle(ctx)
}

func (t *trial) changes(ctx context.Context, times int) (killed, grown []sample, err error) {
	for i := range times {
		for _, c := range []struct {
			kind  string
			cause func() error
			all   *[]sample
		}{
			{"kill", func() error { return t.kill(i) }, &killed},
			{"grow", func() error { return t.grow(ctx) }, &grown},
		} {
			s, err := t.change(ctx, c.cause)
			if err != nil {
				return killed, grown, fmt.Errorf("run %d of %d, %s: %w", i+1, times, c.kind, err)
			}
			*c.all = append(*c.all, s)
			t.say("%s, run %d of %d, %s: %.3f s, %d steps lost", t.name, i+1, times, c.kind, s.pause.Seconds(), s.lost)
		}
	}
	return killed, grown, nil
}

// change has something happen, waits until all members train in one world again, and says what it has cost.
func (t *trial) change(ctx context.Context, cause func() error) (sample, error) {
	before := append([]*member(nil), t.members...)
	marks := map[*member]int{}
	for _, m := range before {
		marks[m] = len(m.timeline())
	}
	if err := cause(); err != nil {
		return sample{}, err
	}
	if err := t.settle(ctx); err != nil {
		return sample{}, err
	}
	var all []sample
	for _, m := range t.members {
		if mark, survived := marks[m]; survived {
			all = append(all, m.timeline().cost(mark, t.round))
		}
	}
	return worst(all), nil
}

// kill ends a member at once with all its processes, another one each time.
func (t *trial) kill(run int) error {
	victim := t.spares() + run%(len(t.members)-t.spares())
	m := t.members[victim]
	t.members = append(append([]*member(nil), t.members[:victim]...), t.members[victim+1:]...)
	return m.kill()
}

func (t *trial) grow(ctx context.Context) error {
	m, err := t.add(ctx)
	if err == nil {
		t.members = append(t.members, m)
	}
	return err
}

// settle waits until all members have trained in the same world for a while, one after that before.
func (t *trial) settle(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	for {
		var all []timeline
		for _, m := range t.members {
			if m.over() {
				return fmt.Errorf("a member has ended:\n%s", m.lastLines())
			}
			all = append(all, m.timeline())
		}
		if round := settled(all); round > t.round {
			t.round = round
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			var said []string
			for _, m := range t.members {
				said = append(said, fmt.Sprintf("%s, %d steps:\n%s", m.name, len(m.timeline()), m.lastLines()))
			}
			return fmt.Errorf("the members are not in one world: %w\n%s", ctx.Err(), strings.Join(said, "\n"))
		}
	}
}

// end ends all members.
func (t *trial) end() error {
	var errs []error
	for _, m := range t.members {
		errs = append(errs, m.kill())
	}
	return errors.Join(errs...)
}
