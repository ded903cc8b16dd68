package agent

import (
	"context"
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/agent/reach"
	"github.com/concertina-dev/concertina/internal/agent/snapshots"
	"github.com/concertina-dev/concertina/internal/agent/socket"
	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/deviceerror"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
	"github.com/concertina-dev/concertina/internal/share"
)

// The methods in this file are the agent as its session sees it.

// Hello introduces the agent.
func (a *agent) Hello() *rendezvousv1.Hello {
	port, certificate := a.keeper.Endpoint()
	return &rendezvousv1.Hello{
		Protocol:            Protocol,
		Namespace:           a.config.Namespace,
		Job:                 a.config.Job,
		Attempt:             int32(a.config.Attempt),
		PodName:             a.config.PodName,
		PodUid:              a.config.PodUID,
		Address:             a.config.PodIP,
		MasterPort:          uint32(a.masterPort()),
		SnapshotPort:        uint32(port),
		SnapshotCertificate: certificate,
		Parts:               true,
		Puts:                a.durable != nil,
	}
}

// State is the whole state of the agent.
func (a *agent) State() *rendezvousv1.Report {
	a.mu.Lock()
	standing, lastWords := a.standing, a.lastWords
	a.mu.Unlock()
	states := a.server.States()
	a.noteBegun(standing, states)
	r := report(standing, states, a.keeper.List(), a.keeper.Failure())
	if r.Failure != nil && standing.restarts > 0 {
		r.Failure.Message = lastWords
	}
	r.StateSize = sizeMessage(a.keeper.Size())
	r.SnapshotTrouble = wire.HeadOf(a.keeper.Trouble(), maxReason)
	if of, why := a.keeper.Uncopied(); why != "" {
		r.Uncopied = &rendezvousv1.Uncopied{Round: of.Round, Step: of.Step, Error: wire.HeadOf(why, maxReason)}
	}
	r.MasterPort = uint32(a.masterPort())
	a.addDurable(r)
	a.addScores(r)
	for _, result := range a.prober.Results() {
		r.Probed = append(r.Probed, &rendezvousv1.Probed{Number: result.Number, Reached: result.Reached, Refused: result.Refused})
	}
	return r
}

// noteBegun has what came of shards go once all processes have made a step.
func (a *agent) noteBegun(standing standing, states []socket.State) {
	if round, begun := begunIn(standing, states); begun {
		a.keeper.Began(round)
	}
}

// reach says whether the agent of a peer answers.
func (a *agent) reach(ctx context.Context, peer reach.Peer) error {
	return a.keeper.Reach(ctx, checkpoint.Holder{Address: peer.Address, Port: peer.Port, Certificate: peer.Certificate})
}

// masterPort is the port that is kept for the next world.
func (a *agent) masterPort() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.port.Number()
}

// said gives what a process has said to the loop.
func (a *agent) said(message socket.Message) {
	if message.Slot == socket.Launcher {
		a.launched(message)
		return
	}
	event := lifecycle.Said{Slot: message.Slot, Connection: message.Connection}
	switch body := message.Body.(type) {
	case nil:
		event.What = lifecycle.Disconnected
	case wire.Hello:
		event.What, event.Leaves, event.Shares = lifecycle.Connected, body.Leaves, body.Shares
		event.Sharded, event.Local = body.Sharded, body.Local
		event.HandsOver = body.Handover && !body.Sharded && !body.Leaves
	case wire.Join:
		event.What = lifecycle.Joined
	case wire.Parked:
		event.What, event.Step = lifecycle.Parked, body.Step
	case wire.Want:
		event.What, event.Parts, event.Ranges = lifecycle.Wants, body.Parts, body.Ranges
	case wire.Aborted:
		event.What, event.Step, event.Clean = lifecycle.Aborted, body.Step, body.Clean
	case wire.Fault:
		event.What, event.Step, event.Clean = lifecycle.Faulted, body.Step, body.Clean
		event.Device = deviceerror.Is(body.Message)
	case wire.Finished:
		event.What, event.Step, event.Clean = lifecycle.Finished, body.Step, body.Clean
	case wire.Left:
		event.What, event.Step = lifecycle.Left, body.Step
	case wire.Snapshot:
		if size := body.Size; size != nil {
			a.keeper.Measured(message.Slot, message.Round, share.Size{State: size.State, Own: size.Own, Shards: size.Shards, Written: size.Written})
		}
		a.mu.Lock()
		standing := a.standing
		a.mu.Unlock()
		a.noteBegun(standing, a.server.States()) // it may have no room beside that, and the operator be out of reach
		if body.Error != "" {
			a.keeper.Failed(body.Step, wire.TailOf(body.Error, briefFault))
		} else {
			a.keeper.Take(message.Round, body.Step, filesOf(body), body.Reuses)
		}
		event.What, event.Step = lifecycle.Saved, body.Step
	case wire.Score:
		a.session.Tell() // the operator is to know before the state is held no more
		return
	default:
		return
	}
	a.send(event)
}

func sizeMessage(size share.Size) *rendezvousv1.StateSize {
	if size.State == 0 {
		return nil
	}
	return &rendezvousv1.StateSize{State: size.State, Own: size.Own, Shards: size.Shards, Written: size.Written}
}

// filesOf are the files of a snapshot.
func filesOf(s wire.Snapshot) []snapshots.File {
	if s.Parts == nil {
		return []snapshots.File{{Name: s.File, Bytes: s.Bytes}}
	}
	var files []snapshots.File
	for _, part := range *s.Parts {
		files = append(files, snapshots.File{Part: part.Key, Name: part.File, Bytes: part.Bytes})
	}
	return files
}

// Hear gives a directive to the loop and returns whether it was obeyed. What it asks about peers is answered beside
// the loop.
func (a *agent) Hear(ctx context.Context, d *rendezvousv1.Directive, sent time.Time) bool {
	obeyed := make(chan bool, 1)
	event := lifecycle.Heard{Directive: directive(d), Sent: sent}
	select {
	case a.events <- envelope{event: event, obeyed: obeyed}:
		if !<-obeyed {
			return false
		}
		a.prober.Ask(d.GetTerm(), probesIn(d.GetProbes()))
		a.askDurable(d)
		if on := d.GetRelied(); on != nil {
			a.keeper.Rely(checkpoint.ID{Round: on.GetRound(), Step: on.GetStep()})
		}
		a.keeper.Scored(checkpoint.ID{Round: d.GetScored().GetRound(), Step: d.GetScored().GetStep()})
		a.copyShards(d.GetCopies())
		return true
	case <-a.leaving:
		return true
	case <-ctx.Done():
		return true
	}
}

// Gone tells the loop that the operator knows no such job.
func (a *agent) Gone(context.Context) { a.send(lifecycle.Gone{}) }

// repeatAfter is how long the same trouble with the operator is not mentioned again.
const repeatAfter = time.Minute

// Lost mentions a session that has ended, unless the same was said a moment ago.
func (a *agent) Lost(err error) {
	code := status.Code(err)
	now := time.Now()
	if a.trouble.code == code && now.Sub(a.trouble.since) < repeatAfter {
		return
	}
	a.trouble.code, a.trouble.since = code, now
	a.log.note("no session with the operator, trying again (%s): %v", remedy(code), err)
}

// Found mentions that trouble is over.
func (a *agent) Found() {
	if !a.trouble.since.IsZero() {
		a.log.note("in touch with the operator again")
	}
	a.trouble = trouble{}
}

// trouble is what the session suffers from; the session's own goroutine is the only one to look.
type trouble struct {
	code  codes.Code
	since time.Time
}

func remedy(code codes.Code) string {
	switch code {
	case codes.Unauthenticated:
		return "the token was not accepted: is the audience of the projected token the operator's?"
	case codes.PermissionDenied:
		return "this pod is not a worker of that job"
	case codes.NotFound:
		return "the job is gone, finished or suspended"
	case codes.FailedPrecondition:
		return "the agent and the operator are too many versions apart"
	default:
		return "the program does not depend on it"
	}
}

func directive(d *rendezvousv1.Directive) lifecycle.Directive {
	heard := lifecycle.Directive{
		Term: d.GetTerm(), Round: d.GetRound(), Released: d.GetReleased(),
		World:   worldOf(d.GetWorld()),
		Standby: d.GetStandby(), Key: string(d.GetTicketKey()),
		Barrier: lifecycle.Barrier{
			Attempt: d.GetBarrier().GetAttempt(), Step: d.GetBarrier().GetStep(), Save: d.GetBarrier().GetSave(),
		},
		Raise: d.GetRaise(), Finish: d.GetFinish(), Hold: d.GetHold(), Restarts: d.Restarts, Staging: stagingIn(d.GetStaging()),
	}
	if abort := d.GetAbort(); abort != nil {
		heard.Abort = &lifecycle.Abort{
			Reason: abort.GetReason(), Planned: abort.GetPlanned(), SaveStep: abort.GetSaveStep(), LeaveStep: abort.GetLeaveStep(),
		}
	}
	if prefetch := d.GetPrefetch(); prefetch.GetSnapshot() != nil {
		heard.Prefetch = &lifecycle.Prefetch{
			Snapshot: *snapshotOf(prefetch.GetSnapshot()), Parts: partsIn(prefetch.GetParts()),
			Holders: holdersIn(prefetch.GetHolders()), Peers: holdersIn(prefetch.GetPeers()),
		}
	}
	return heard
}

func worldOf(w *rendezvousv1.World) lifecycle.World {
	world := lifecycle.World{
		Digest:        w.GetMembersDigest(),
		Parent:        w.GetParent(),
		FromStep:      w.GetFromStep(),
		WorkerRank:    clamp(w.GetWorkerRank()),
		Workers:       clamp(w.GetWorkers()),
		Processes:     clamp(w.GetProcessesPerWorker()),
		MasterAddress: w.GetMasterAddress(),
		MasterPort:    clamp(w.GetMasterPort()),
		Restore:       w.GetRestore(),
		Handover:      w.GetHandover(),
		Writer:        w.GetWriter(),
		Staging:       stagingIn(w.GetStaging()),
		Parts:         partsIn(w.GetParts()),
	}
	if s := w.GetSnapshot(); s != nil {
		world.Snapshot = snapshotOf(s)
	}
	world.Holders, world.Peers = holdersIn(w.GetHolders()), holdersIn(w.GetPeers())
	return world
}

func snapshotOf(s *rendezvousv1.Snapshot) *lifecycle.Snapshot {
	named := &lifecycle.Snapshot{Round: s.GetRound(), Step: s.GetStep(), Bytes: s.GetBytes()}
	copy(named.Hash[:], s.GetHash())
	return named
}

func partsIn(messages []*rendezvousv1.Snapshot) []lifecycle.Part {
	var parts []lifecycle.Part
	for _, p := range messages {
		part := lifecycle.Part{Key: p.GetPart(), Bytes: p.GetBytes()}
		copy(part.Hash[:], p.GetHash())
		parts = append(parts, part)
	}
	return parts
}

func stagingIn(message *rendezvousv1.Staging) lifecycle.Staging {
	staging := lifecycle.Staging{Of: clamp(message.GetOf())}
	for _, share := range message.GetShares() {
		staging.Shares = append(staging.Shares, clamp(share))
	}
	return staging
}

func holdersIn(messages []*rendezvousv1.Holder) []lifecycle.Holder {
	var holders []lifecycle.Holder
	for _, h := range messages {
		holder := lifecycle.Holder{Address: h.GetAddress(), Port: clamp(h.GetPort()), Ticket: h.GetTicket()}
		copy(holder.Certificate[:], h.GetCertificate())
		for _, part := range h.GetParts() {
			holder.Parts = append(holder.Parts, clamp(part))
		}
		holders = append(holders, holder)
	}
	return holders
}

func probesIn(messages []*rendezvousv1.Probe) []reach.Probe {
	var probes []reach.Probe
	for _, p := range messages {
		probe := reach.Probe{Number: p.GetNumber(), Peer: reach.Peer{Address: p.GetAddress(), Port: clamp(p.GetPort())}}
		copy(probe.Peer.Certificate[:], p.GetCertificate())
		probes = append(probes, probe)
	}
	return probes
}

// clamp makes a count that fits an int everywhere; one so large is refused later as nonsense.
func clamp(n uint32) int { return int(min(n, math.MaxInt32)) }
