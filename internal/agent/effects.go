package agent

import (
	"errors"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/completion"
	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/agent/masterport"
	"github.com/concertina-dev/concertina/internal/agent/process"
	"github.com/concertina-dev/concertina/internal/agent/socket"
	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// outcome is what the effects of one event come to.
type outcome struct {
	refused, tell, leave bool
	code                 int
}

// do carries effects out in their order; what is told is the state after all of them.
func (a *agent) do(effects []lifecycle.Effect, obeyed chan<- bool) (code int, leave bool) {
	var o outcome
	for len(effects) > 0 {
		effect := effects[0]
		effects = append(effects[1:], a.carryOut(effect, &o)...)
	}
	a.server.SetTerm(a.machine.Term())
	a.mu.Lock()
	a.standing = standingOf(a.machine, a.config)
	a.mu.Unlock()
	if obeyed != nil {
		obeyed <- !o.refused
	}
	if o.tell {
		a.session.Tell()
	}
	return o.code, o.leave
}

// carryOut does one thing, and returns what follows from it at once.
func (a *agent) carryOut(effect lifecycle.Effect, o *outcome) []lifecycle.Effect {
	switch effect := effect.(type) {
	case lifecycle.Start:
		a.start(effect)
	case lifecycle.Refuse:
		o.refused = true
		if a.refused != effect.Why {
			a.log.note("refused a directive: %s", effect.Why)
		}
		a.refused = effect.Why
	case lifecycle.Terminate:
		for _, i := range effect.Programs {
			a.programs[i].Signal(syscall.SIGTERM)
		}
	case lifecycle.Kill:
		if left := a.reaper.KillAll(killBound); left > 0 {
			a.log.note("%d processes of the program are still there %v after SIGKILL", left, killBound)
		}
	case lifecycle.Look:
		a.lookAtStacks(effect.Slots)
	case lifecycle.Checkpoint:
		a.askForCheckpoint(effect.Round)
	case lifecycle.Note:
		a.log.note("%s", effect.Text)
	case lifecycle.Tell:
		o.tell = true
	case lifecycle.Leave:
		o.code, o.leave = effect.Code, true
	case lifecycle.Arm:
		stop := a.server.Arm(effect.Slot, effect.Step)
		return a.machine.Step(time.Now(), lifecycle.Armed{Slot: effect.Slot, Stop: stop})
	case lifecycle.Interrupt:
		forming, phase := a.server.Interrupt(effect.Slot, effect.Connection, effect.Round, effect.Reason)
		return a.machine.Step(time.Now(), lifecycle.Interrupted{
			Slot: effect.Slot, Forming: forming, Apart: phase == gate.PhaseEval || phase == gate.PhaseSaving,
		})
	case lifecycle.Remember:
		a.remember()
	default:
		a.carryOutTalk(effect)
	}
	return nil
}

// carryOutTalk does what concerns processes that speak to the agent, and snapshots.
func (a *agent) carryOutTalk(effect lifecycle.Effect) {
	switch effect := effect.(type) {
	case lifecycle.Trust:
		a.keeper.Trust(effect.Term, []byte(effect.Key))
	case lifecycle.Enter:
		a.keeper.Enter(effect.Round, effect.World.FromStep, effect.Continues, idOf(effect.World.Snapshot))
	case lifecycle.Keep:
		a.keeper.Keep(effect.Round, effect.Step)
	case lifecycle.Fetch:
		a.fetch(effect)
	case lifecycle.FetchAhead:
		a.keeper.FetchAhead(upFront(wanted(effect.Snapshot, effect.Parts, effect.Holders, effect.Peers)))
	case lifecycle.FetchShards:
		a.fetchShards(effect)
	case lifecycle.Hand:
		a.hand(effect)
	case lifecycle.Give:
		a.give(effect)
	case lifecycle.Deny:
		a.server.Deny(effect.Slot, effect.Connection, effect.Why)
	case lifecycle.Lift:
		a.server.Lift(effect.Slot)
	case lifecycle.Word:
		a.say(effect)
	default:
		a.carryOutLaunch(effect)
	}
}

func (a *agent) say(word lifecycle.Word) {
	var message any
	switch word.Say {
	case lifecycle.SayGo:
		message = wire.Go{Type: wire.TypeGo}
	case lifecycle.SayRaise:
		message = wire.Raise{Type: wire.TypeRaise}
	case lifecycle.SayEnd:
		message = wire.End{Type: wire.TypeEnd}
	case lifecycle.SayLeave:
		message = wire.Leave{Type: wire.TypeLeave, Step: word.Step}
	case lifecycle.SaySave:
		if !a.keeper.Ask(word.Step) {
			a.session.Tell()
			a.post(lifecycle.Said{Slot: word.Slot, Connection: word.Connection, What: lifecycle.Saved, Step: word.Step})
			return
		}
		message = wire.Save{Type: wire.TypeSave, Step: word.Step, Staging: stagingOf(word.Staging)}
	}
	a.server.Say(word.Slot, word.Connection, message)
}

// remember keeps what the first process to fail has said.
func (a *agent) remember() {
	failed := firstFault(a.server.States())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lastWords = failed
}

// start starts the programs. One that cannot be started counts as ended.
func (a *agent) start(start lifecycle.Start) {
	if start.Round == 0 {
		a.log.note("starting the program to be ready for a world")
	} else {
		a.log.note("round %d: worker %d of %d, master %s port %d", start.Round, start.World.WorkerRank,
			start.World.Workers, start.World.MasterAddress, start.World.MasterPort)
		a.nextPort()
	}
	a.programs = make([]*process.Program, a.config.Programs())
	a.keeper.Clear()
	err := a.server.Open(start.Round, start.World.FromStep)
	for i := range a.programs {
		if err == nil {
			err = a.startOne(i, start)
		}
		if err != nil {
			a.programs[i] = nil
			a.post(lifecycle.Exited{Program: i, Code: codeOf(err)})
		}
	}
	if err != nil {
		a.log.note("%v", err)
	}
}

func (a *agent) startOne(program int, start lifecycle.Start) error {
	slot := program
	if a.config.Launch == LaunchPerWorker {
		slot = allSlots
	}
	var err error
	a.programs[program], err = a.reaper.Start(a.config.Command,
		environment(os.Environ(), a.config, start, program),
		func(code int) {
			go func() {
				// What the program said last belongs to the report of its end.
				a.server.Drain(slot, a.config.Drain)
				a.send(lifecycle.Exited{Program: program, Code: code})
			}()
		})
	return err
}

// allSlots stands for every slot of the worker.
const allSlots = -1

func codeOf(err error) int {
	if failed := new(process.StartError); errors.As(err, &failed) {
		return failed.Code
	}
	return ExitAgentFailed
}

// give tells a process its world, whose snapshot is there by now.
func (a *agent) give(give lifecycle.Give) {
	world := give.Start.World
	place := socket.Place{
		Term: give.Start.Term, Round: give.Start.Round, Parent: world.Parent, FromStep: world.FromStep,
		WorkerRank: world.WorkerRank, Workers: world.Workers,
		MasterAddress: world.MasterAddress, MasterPort: world.MasterPort,
		GivesPort: a.config.Launch == LaunchPerProcess,
		Restore:   world.Restore, Handover: world.Handover, Writer: world.Writer, Staging: stagingOf(world.Staging),
	}
	place.Shards = shardsOf(world.Parts)
	if world.Snapshot != nil && (world.Restore || place.Shards != nil) {
		files := upFront(wanted(*world.Snapshot, world.Parts, nil, nil))
		place.Snapshot = a.keeper.Path(files[0].ID)
		for _, share := range files[1:] {
			place.Shares = append(place.Shares, a.keeper.Path(share.ID))
		}
	}
	if world.WorkerRank == 0 && give.Slot == 0 && world.MasterPort == a.port.Number() {
		a.nextPort()
	}
	a.server.Give(give.Slot, give.Connection, place)
}

// nextPort lets the program of rank 0 have the port that was kept for it, and keeps another one for the
// next world.
func (a *agent) nextPort() {
	a.port.Release()
	next, err := masterport.Reserve()
	if err != nil {
		a.log.note("%v: the next world gets the same port", err)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.port = next
}

func idOf(snapshot *lifecycle.Snapshot) *checkpoint.ID {
	if snapshot == nil {
		return nil
	}
	return &checkpoint.ID{Round: snapshot.Round, Step: snapshot.Step}
}

// fetch gets the snapshot that a world begins with.
func (a *agent) fetch(fetch lifecycle.Fetch) {
	a.keeper.Fetch(upFront(wanted(*fetch.World.Snapshot, fetch.World.Parts, fetch.Holders, fetch.World.Peers)), func(err error) {
		a.send(fetchedAs(fetch.Round, err))
	})
}

// fetchedAs says what has come of a fetch for a round.
func fetchedAs(round uint64, err error) lifecycle.Fetched {
	event := lifecycle.Fetched{Round: round}
	if err == nil {
		return event
	}
	event.Why, event.Unreached, event.Local = err.Error(), errors.Is(err, checkpoint.ErrUnreached), errors.Is(err, checkpoint.ErrLocal)
	event.Busy, event.Moved, event.Lacks = errors.Is(err, checkpoint.ErrBusy), checkpoint.MovedIn(err), checkpoint.LackedIn(err)
	for _, u := range checkpoint.UnreachedIn(err) {
		event.Holders = append(event.Holders, lifecycle.Unreached{
			Address: u.Holder.Address, Port: u.Holder.Port, Certificate: u.Holder.Certificate, Why: u.Why.Error(), Gave: u.Gave,
		})
	}
	return event
}

func stagingOf(s lifecycle.Staging) *wire.Staging {
	if s.Of == 0 {
		return nil
	}
	return &wire.Staging{Of: s.Of, Shares: s.Shares}
}

// wanted are the files of a snapshot, who has each, and who is getting it as well.
func wanted(s lifecycle.Snapshot, parts []lifecycle.Part, holders, peers []lifecycle.Holder) []checkpoint.Wanted {
	if len(parts) == 0 {
		whole := checkpoint.Wanted{Snapshot: checkpoint.Snapshot{ID: *idOf(&s), Bytes: s.Bytes, Hash: s.Hash}}
		for i := range holders {
			whole.Holders = append(whole.Holders, holderOf(&holders[i]))
		}
		for i := range peers {
			whole.Peers = append(whole.Peers, holderOf(&peers[i]))
		}
		return []checkpoint.Wanted{whole}
	}
	files := make([]checkpoint.Wanted, len(parts))
	for i, part := range parts {
		id := checkpoint.ID{Round: s.Round, Step: s.Step, Part: part.Key}
		files[i].Snapshot = checkpoint.Snapshot{ID: id, Bytes: part.Bytes, Hash: part.Hash}
		files[i].Holders, files[i].Peers = thoseOf(i, holders), thoseOf(i, peers)
	}
	return files
}

// thoseOf are those that have a part, or are getting it.
func thoseOf(part int, all []lifecycle.Holder) (some []checkpoint.Holder) {
	for i := range all {
		if slices.Contains(all[i].Parts, part) {
			some = append(some, holderOf(&all[i]))
		}
	}
	return some
}

func holderOf(h *lifecycle.Holder) checkpoint.Holder {
	return checkpoint.Holder{Address: h.Address, Port: h.Port, Certificate: h.Certificate, Ticket: h.Ticket}
}

// askForCheckpoint gives the programs their time for a checkpoint.
func (a *agent) askForCheckpoint(round uint64) {
	programs := append([]*process.Program(nil), a.programs...)
	launchers := a.config.Launch == LaunchPerWorker
	a.background.Go(func() {
		how := completion.Ask(a.ctx, a.config.Checkpoint, func(sig syscall.Signal) int {
			return a.reaper.SignalTopmost(programs, sig, launchers)
		})
		a.log.note("%s", how)
		a.send(lifecycle.Checkpointed{Round: round})
	})
}

// stacksSignal asks a program for the stacks of its threads, in the worker's log. The SDKs of languages that can handle
// it; it is none that programs use.
const stacksSignal = syscall.Signal(40)

// lookAtStacks asks the programs of those slots for the stacks of their threads that hang, before they are killed. Who goes on with
// what it was at is not asked: it may still leave in time, and to write its stacks can cost a program its life.
func (a *agent) lookAtStacks(slots []int) {
	var hang []*process.Program
	for _, slot := range slots {
		if slot < len(a.programs) && a.server.Hangs(slot) { // a program has one process where programs are told to leave worlds
			hang = append(hang, a.programs[slot])
		}
	}
	if asked := a.reaper.SignalTopmost(hang, stacksSignal, false); asked > 0 {
		a.log.note("a world is over and %d processes hang in it: they write the stacks of their threads", asked)
	}
}
