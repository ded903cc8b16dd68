package agent

import (
	"cmp"

	"github.com/concertina-dev/concertina/internal/agent/durable"
	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// maxRefused is how many checkpoints that could not be used are reported.
const maxRefused = 8

// askDurable has the uploader do what a directive says about the storage.
func (a *agent) askDurable(d *rendezvousv1.Directive) {
	if a.durable == nil {
		return
	}
	var save *durable.Save
	var restore *durable.Restore
	if upload := d.GetUpload(); upload.GetSnapshot() != nil {
		named := snapshotOf(upload.GetSnapshot())
		save = &durable.Save{
			Snapshot: checkpoint.Snapshot{ID: *idOf(named), Bytes: named.Bytes, Hash: named.Hash}, Keep: clamp(upload.GetKeep()),
			Put: putsOf(named, upload.GetPut()), Manifest: putsOf(named, upload.GetManifest()), Rate: upload.GetRate(),
			Score: upload.Score, Durable: upload.GetDurable(),
		}
	}
	r := d.GetRestore()
	switch {
	case r != nil:
		restore = &durable.Restore{Number: r.GetNumber(), Path: r.GetPath(), Apart: r.GetApart(), Without: r.GetWithout()}
		for _, part := range r.GetParts() {
			named := snapshotOf(part)
			id := *idOf(named)
			id.Part = part.GetPart()
			restore.Parts = append(restore.Parts, checkpoint.Snapshot{ID: id, Bytes: named.Bytes, Hash: named.Hash})
		}
	case d.GetPrefetch() != nil:
		a.durable.Begun(0)
	case d.GetWorld() != nil && d.GetAbort() == nil:
		a.durable.Begun(d.GetRound())
	}
	a.durable.Ask(save, restore)
	a.durable.List(d.GetListBest())
}

// putsOf are parts of a snapshot that is to be made durable.
func putsOf(of *lifecycle.Snapshot, messages []*rendezvousv1.Snapshot) []checkpoint.Snapshot {
	if len(messages) == 0 {
		return nil
	}
	files := wanted(*of, partsIn(messages), nil, nil)
	parts := make([]checkpoint.Snapshot, len(files))
	for i := range files {
		parts[i] = files[i].Snapshot
	}
	return parts
}

// addDurable reports what has come of it.
func (a *agent) addDurable(r *rendezvousv1.Report) {
	if a.durable == nil {
		return
	}
	state := a.durable.State()
	r.UploadError = wire.HeadOf(troubleOf(&state), maxReason)
	if saved := state.Saved; saved != nil {
		r.Durable = &rendezvousv1.Durable{Snapshot: messageOf(saved.Snapshot), Path: saved.Path, Score: saved.Score}
	}
	for _, part := range state.Put {
		r.Put = append(r.Put, messageOf(part))
	}
	if listed := state.Listed; listed.Number > 0 {
		r.Listed = &rendezvousv1.Listed{Number: listed.Number}
		for _, one := range listed.Best {
			r.Listed.Best = append(r.Listed.Best, &rendezvousv1.Kept{Round: one.Round, Step: one.Step, Path: one.Path, Score: one.Score})
		}
	}
	if restored := state.Restored; restored.Number > 0 {
		r.Restored = &rendezvousv1.Restored{
			Number: restored.Number, Path: restored.Path, Error: wire.HeadOf(restored.Why, maxReason),
		}
		if restored.Snapshot != nil {
			r.Restored.Snapshot = messageOf(*restored.Snapshot)
		}
		for _, part := range restored.Parts {
			r.Restored.Parts = append(r.Restored.Parts, messageOf(part))
		}
		for _, part := range restored.Of {
			r.Restored.Of = append(r.Restored.Of, messageOf(part))
		}
		for _, why := range restored.Refused[:min(len(restored.Refused), maxRefused)] {
			r.Restored.Refused = append(r.Restored.Refused, wire.HeadOf(why, maxReason))
		}
	}
}

// addScores reports what the programs have said of states that were evaluated.
func (a *agent) addScores(r *rendezvousv1.Report) {
	for _, s := range a.server.Scores() {
		if s.Round > r.Round {
			continue // it is not entered yet
		}
		one := &rendezvousv1.Score{Round: s.Round, Step: s.Step, Value: s.Value, Error: wire.HeadOf(s.Error, maxReason)}
		if s.Value == nil && s.Error == "" {
			continue
		}
		r.Scores = append(r.Scores, one)
	}
}

// troubleOf is what is wrong with the storage, as far as what this worker is at goes: while it brings something back, that an upload has
// failed before says nothing.
func troubleOf(state *durable.State) string {
	if state.Bringing {
		return state.Waiting
	}
	return cmp.Or(state.Failure, state.Waiting)
}

func messageOf(s checkpoint.Snapshot) *rendezvousv1.Snapshot {
	return &rendezvousv1.Snapshot{Round: s.Round, Step: s.Step, Bytes: s.Bytes, Hash: s.Hash[:], Part: s.Part}
}
