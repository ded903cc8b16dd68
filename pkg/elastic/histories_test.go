package elastic_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/pkg/elastic"
	"github.com/concertina-dev/concertina/pkg/elastic/samples"
)

// chain is a model whose value depends on every step, and on the order of them.
type chain struct{ Value uint64 }

func (c *chain) update(total uint64) { c.Value = c.Value*31 + total }

// collective adds numbers up over the ranks of one world. When it breaks, ranks that wait fail, also
// those that could have gone on: survivors may be a step apart.
type collective struct {
	size   int
	broken chan struct{}
	// breakAt is the step in which the victim is lost, once so many ranks have come.
	breakAt uint64
	breakBy int
	victim  *process

	mu    sync.Mutex
	turns map[uint64]*turn
}

type turn struct {
	came  int
	total uint64
	done  chan struct{}
}

func (c *collective) sum(ctx context.Context, step, x uint64) (uint64, error) {
	c.mu.Lock()
	t := c.turns[step]
	if t == nil {
		t = &turn{done: make(chan struct{})}
		c.turns[step] = t
	}
	t.came, t.total = t.came+1, t.total+x
	// Who is lost in the last step of all has not finished.
	if c.breakAt == step && t.came == c.breakBy {
		c.victim.kill(errKilled)
		close(c.broken)
	}
	if t.came == c.size {
		close(t.done)
	}
	c.mu.Unlock()
	select {
	case <-t.done:
		return t.total, nil
	case <-c.broken:
		return 0, errors.New("connection reset by peer")
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// history is a job whose worlds change, and the coordinator that changes them.
type history struct {
	t     *rapid.T
	shape samples.Shape
	a     *agent
	// random makes the choices. How many there are depends on how fast the processes are, so they
	// are not drawn one by one.
	random *rand.Rand

	mu     sync.Mutex
	worlds map[uint64]*collective
	// ledger has the samples of each round, step and rank.
	ledger map[[3]uint64][]uint64

	round uint64
	// from is the step after which each round begins, by round.
	from      map[uint64]uint64
	members   []*process
	started   int
	snapshots map[uint64]string
}

// process is one rank and what the coordinator knows of it.
type process struct {
	*program
	kill   context.CancelCauseFunc
	state  *chain
	result chan error
	// stop is the step after which it is to stand, 0 for none. The program's lock guards it.
	stop uint64
}

var errKilled = errors.New("killed")

func (h *history) flip() bool                { return h.random.IntN(2) == 0 }
func (h *history) between(low, high int) int { return low + h.random.IntN(high-low+1) }

// startProcess starts a process that has said join when it returns.
func (h *history) startProcess() *process {
	setLocalRank(h.started)
	h.started++
	ctx, kill := context.WithCancelCause(context.Background())
	p := &process{kill: kill, state: &chain{}, result: make(chan error, 1)}
	var run *elastic.Run
	run, p.program = h.a.join(ctx, elastic.Options{
		Samples: h.shape.Samples, Epochs: h.shape.Epochs, GlobalBatch: h.shape.GlobalBatch,
		MicroBatch: h.shape.MicroBatch, Seed: h.shape.Seed, State: elastic.Gob(p.state),
	})
	go func() {
		p.result <- run.Train(func(ctx context.Context, w elastic.World) error { return h.train(ctx, run, w, p.state) })
	}()
	p.expects(wire.Join{Type: wire.TypeJoin})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers = p.goesOn
	return p
}

// goesOn says go to a process that stands where it need not. Like an agent it does so once for each
// parked: a go that is left over would let a process look at the gate when that is open for its next
// world already. The lock is held.
func (p *process) goesOn(parked wire.Parked) bool {
	if p.stop > 0 && parked.Step >= p.stop {
		return false
	}
	p.says(wire.Go{Type: wire.TypeGo})
	return true
}

// moves sets where a process is to stop. It returns what set does, which changes the gate.
func (p *process) moves(set func() (stop uint64)) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop = set()
	for range len(p.said) {
		switch message := (<-p.said).(type) {
		case wire.Progress:
		case wire.Parked:
			if !p.goesOn(message) {
				p.back = append(p.back, message)
			}
		default:
			p.back = append(p.back, message)
		}
	}
	return p.stop
}

func (p *process) arm(n uint64) uint64 {
	return p.moves(func() uint64 { return p.a.page.Arm(p.slot, n) })
}

func (p *process) lift() {
	p.moves(func() uint64 { p.a.page.Lift(p.slot); return 0 })
}

func (p *process) interrupt() {
	p.moves(func() uint64 { p.a.page.Interrupt(p.slot); return 1 })
}

// train is what every process runs.
func (h *history) train(ctx context.Context, run *elastic.Run, w elastic.World, state *chain) error {
	h.mu.Lock()
	peers := h.worlds[w.Round]
	h.mu.Unlock()
	for step := range run.Steps(ctx) {
		x := uint64(0)
		used := []uint64{}
		for indices, weight := range step.MicroBatches() {
			for _, i := range indices {
				if weight > 0 {
					x += i + 1
					used = append(used, i)
				}
			}
		}
		h.mu.Lock()
		h.ledger[[3]uint64{w.Round, step.Number(), uint64(w.Rank)}] = used
		h.mu.Unlock()
		total, err := peers.sum(ctx, step.Number(), x)
		if err != nil {
			if (w.Round+uint64(w.Rank))%3 == 0 {
				step.BeginUpdate()
				state.Value ^= 0xdead // half a step
			}
			return err
		}
		step.BeginUpdate()
		state.update(total)
	}
	return run.Err()
}

// next is what a process says next; snapshots are taken over on the way.
func (h *history) next(p *process) any {
	for {
		message := p.hears()
		s, ok := message.(wire.Snapshot)
		if !ok {
			return message
		}
		if s.Error != "" {
			h.t.Fatalf("%+v", s)
		}
		h.snapshots[s.Step] = p.keep(h.round, s)
	}
}

// enter brings the members into the next world. Those of live go on with their state; the others load
// what is known after step from.
func (h *history) enter(members []*process, live map[*process]bool, from uint64) {
	h.round++
	h.from[h.round] = from
	h.members = members
	c := &collective{size: len(members), broken: make(chan struct{}), turns: map[uint64]*turn{}}
	maps.DeleteFunc(h.snapshots, func(step uint64, _ string) bool { return step > from })
	// What happens in this world is drawn before it begins: it may run at any speed.
	h.plan(c, from)
	h.mu.Lock()
	h.worlds[h.round] = c
	h.mu.Unlock()
	for rank, p := range members {
		w := wire.World{
			Round: h.round, Parent: h.round - 1, FromStep: from, Rank: rank, Size: len(members), Writer: true,
		}
		if !live[p] {
			w.Restore, w.Snapshot = true, h.snapshots[from]
		}
		p.lift()
		p.world(w)
	}
}

// plan draws a step at which a member is lost, or none.
func (h *history) plan(c *collective, from uint64) {
	if c.size < 2 || h.round > 12 || from == h.shape.Steps() || !h.flip() {
		return
	}
	victim := h.members[h.between(0, c.size-1)]
	c.breakAt = uint64(h.between(int(from+1), int(h.shape.Steps())))
	c.breakBy = h.between(1, c.size)
	c.victim = victim
}

// barrier has all members stand after the same step, n or later, and returns that. reached is false
// when the training ends before that; lost is true when a member does not come.
func (h *history) barrier(n uint64) (step uint64, reached, lost bool) {
	for range 2 {
		for _, p := range h.members {
			n = max(n, p.arm(n))
		}
	}
	if n >= h.shape.Steps() {
		for _, p := range h.members {
			p.lift()
		}
		return 0, false, false
	}
	for _, p := range h.members {
		message := h.next(p)
		parked, ok := message.(wire.Parked)
		if !ok {
			p.unread(message)
			return 0, false, true
		}
		if parked.Step != n {
			h.t.Fatalf("a process stands after step %d, and was to stop after %d", parked.Step, n)
		}
	}
	return n, true, false
}

func (h *history) sayAll(message any) {
	for _, p := range h.members {
		p.says(message)
	}
}

// change goes on in another world after a barrier that all stand at.
func (h *history) change(step uint64) {
	leaves := h.between(0, len(h.members))
	joins := h.between(0, 2)
	if leaves == len(h.members) && joins == 0 {
		joins = 1
	}
	members := slices.Clone(h.members)
	h.random.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	if joins > 0 {
		writer := members[0]
		writer.says(wire.Save{Type: wire.TypeSave, Step: step})
		h.saved(writer, step)
	}
	live := map[*process]bool{}
	for _, p := range members[leaves:] {
		live[p] = true
	}
	next := members[leaves:]
	for range joins {
		next = append(next, h.startProcess())
	}
	leavers := members[:leaves:leaves]
	h.enter(slices.Clone(next), live, step)
	for _, p := range leavers {
		h.stop(p)
	}
}

// saved waits for the snapshot of the step that a parked process was asked for.
func (h *history) saved(p *process, step uint64) {
	for {
		message := p.hears()
		s, ok := message.(wire.Snapshot)
		if !ok || s.Error != "" {
			h.t.Fatalf("the program answers save with %+v", message)
		}
		h.snapshots[s.Step] = p.keep(h.round, s)
		if s.Step == step {
			return
		}
	}
}

func (h *history) stop(p *process) {
	p.kill(errKilled)
	if err := <-p.result; !errors.Is(err, errKilled) && !strings.Contains(err.Error(), "reset by peer") {
		h.t.Errorf("a process that was killed says %v", err)
	}
	p.hangUp()
}

// recover goes on without who was lost, from the newest state that is left.
func (h *history) recover() {
	for _, p := range h.members {
		p.interrupt()
	}
	h.sayAll(wire.Abort{Type: wire.TypeAbort, Round: h.round, Reason: "somebody was lost"})
	var survivors []*process
	left := map[*process]leaving{}
	for _, p := range h.members {
		if l, out := h.out(p); out {
			survivors, left[p] = append(survivors, p), l
		} else {
			h.stop(p)
		}
	}
	from, found := uint64(0), false
	for step := range h.snapshots {
		from, found = max(from, step), true
	}
	if !found {
		h.t.Fatalf("no snapshot is left in round %d", h.round)
	}
	done, clean := from, false
	for _, l := range left {
		done, clean = max(done, l.step), clean || l.clean
		if l.clean {
			from = max(from, l.step)
		}
	}
	if clean && done > from+1 {
		h.t.Fatalf("step %d was done, and the newest state is that of step %d: %v", done, from, left)
	}
	live := map[*process]bool{}
	for p, l := range left {
		live[p] = l.clean && l.step == from
	}
	needed := len(h.live(survivors, live)) < len(survivors)
	if h.flip() {
		survivors, needed = append(survivors, h.startProcess()), true
	}
	if _, held := h.snapshots[from]; needed && !held {
		saver := h.live(survivors, live)[0]
		saver.says(wire.Save{Type: wire.TypeSave, Step: from})
		h.saved(saver, from)
	}
	h.enter(survivors, live, from)
}

func (h *history) live(all []*process, live map[*process]bool) []*process {
	return slices.DeleteFunc(slices.Clone(all), func(p *process) bool { return !live[p] })
}

// leaving is what a process says of its state when it has left its world.
type leaving struct {
	step  uint64
	clean bool
}

// out waits until a process has left its world; false when it was lost.
func (h *history) out(p *process) (leaving, bool) {
	for {
		// The lost one may have said so in its last moment.
		switch message := h.next(p).(type) {
		case nil:
			return leaving{}, false
		case wire.Parked:
		case wire.Aborted:
			return leaving{message.Step, message.Clean}, !h.killed(p)
		case wire.Fault:
			return leaving{message.Step, message.Clean}, !h.killed(p)
		case wire.Finished:
			return leaving{message.Step, message.Clean}, !h.killed(p)
		default:
			h.t.Fatalf("the program says %+v when its world is over", message)
		}
	}
}

// killed is true for the process that was lost in this world.
func (h *history) killed(p *process) bool {
	c := h.worlds[h.round]
	select {
	case <-c.broken:
		return c.victim == p
	default:
		return false
	}
}

// finished is true when all members have finished; otherwise one was lost.
func (h *history) finished() bool {
	for i, p := range h.members {
		message := h.next(p)
		if _, ok := message.(wire.Finished); !ok {
			for _, q := range h.members[:i] {
				q.unread(finished(h.shape.Steps()))
			}
			p.unread(message)
			return false
		}
	}
	return true
}

// play changes the worlds until the training is over.
func (h *history) play() {
	var members []*process
	for range h.between(1, 4) {
		members = append(members, h.startProcess())
	}
	h.enter(members, nil, 0)
	for {
		lost := false
		if h.round < 12 && h.flip() {
			var step uint64
			var reached bool
			step, reached, lost = h.barrier(uint64(h.between(int(h.from[h.round]), int(h.shape.Steps()))))
			if reached && h.flip() {
				h.change(step)
				continue
			}
			if reached {
				for _, p := range h.members {
					p.lift()
					p.says(wire.Go{Type: wire.TypeGo})
				}
			}
		}
		if !lost && h.finished() {
			break
		}
		h.recover()
	}
	h.sayAll(wire.End{Type: wire.TypeEnd})
	for rank, p := range h.members {
		if err := <-p.result; err != nil {
			h.t.Errorf("rank %d ended with %v", rank, err)
		}
	}
}

// check compares with a training that nothing happened to.
func (h *history) check() {
	want := &chain{}
	for step := uint64(1); step <= h.shape.Steps(); step++ {
		batch := h.shape.Batch(step)
		order := samples.NewPermutation(h.shape.Seed, batch.Epoch, h.shape.Samples)
		wanted, total := []uint64{}, uint64(0)
		for i := range uint64(batch.Samples) {
			id := order.At(batch.First + i)
			wanted, total = append(wanted, id), total+id+1
		}
		want.update(total)
		used := h.used(step)
		slices.Sort(wanted)
		slices.Sort(used)
		if !slices.Equal(used, wanted) {
			h.t.Errorf("step %d used the samples %v, want %v", step, used, wanted)
		}
	}
	for rank, p := range h.members {
		if *p.state != *want {
			h.t.Errorf("rank %d ends with %+v, want %+v", rank, *p.state, *want)
		}
	}
}

// used is what all ranks used in a step, in the round whose step counts.
func (h *history) used(step uint64) []uint64 {
	round := h.round
	for h.from[round] >= step {
		round--
	}
	var all []uint64
	for key, used := range h.ledger {
		if key[0] == round && key[1] == step {
			all = append(all, used...)
		}
	}
	return all
}

// Whatever happens to its worlds, a training uses each sample of an epoch once, and ends with the
// same model.
func TestAnyHistoryIsTheSameTraining(t *testing.T) {
	environment(t, nil)
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "histories")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		a, done := startAgent(t, dir, gate.MaxSlots)
		defer done()
		a.interval = rapid.SampledFrom([]string{"0.000000001", "100000000"}).Draw(t, "interval")
		_ = os.Setenv("CONCERTINA_SOCKET", a.path)
		h := &history{
			t: t, a: a, random: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "choices"), 0)),
			shape: samples.Shape{
				Samples: rapid.Uint64Range(1, 40).Draw(t, "samples"), Epochs: rapid.IntRange(1, 3).Draw(t, "epochs"),
				GlobalBatch: rapid.IntRange(1, 12).Draw(t, "batch"), MicroBatch: rapid.IntRange(0, 3).Draw(t, "micro-batch"), Seed: 9,
			},
			worlds: map[uint64]*collective{}, ledger: map[[3]uint64][]uint64{},
			from: map[uint64]uint64{}, snapshots: map[uint64]string{},
		}
		h.play()
		h.check()
	})
}
