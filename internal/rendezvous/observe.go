package rendezvous

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Observe returns what is known.
func (m *Machine) Observe(now time.Time) Observation {
	observed := Observation{
		Known:    len(m.gang.Members) > 0,
		JobUID:   m.gang.JobUID,
		Deposed:  m.deposed,
		Attempt:  m.gang.Attempt,
		Adopting: m.adopting(now),
		Members:  make(map[string]MemberObservation, len(m.members)),
		Changes:  slices.Clone(m.changes),
		Losses:   slices.Clone(m.losses),
		Fatal:    m.fatal,
		Untold:   m.pending != nil,
	}
	observed.Phase, observed.Why = m.doing()
	observed.Durable, observed.Storage, observed.Restored, observed.Parked = m.durable, m.storageTrouble(), m.restored(), m.isParked()
	observed.Best, observed.Missed, observed.BestWaits = slices.Clone(m.scores.kept), m.scores.trouble, len(m.scores.waiting) > 0
	observed.BestListed, observed.BestBy = m.scores.listed, m.scores.by
	observed.UploadTook, observed.Differ, observed.Memory = m.uploadTook, m.differ, m.memory()
	observed.Size = m.size()
	if m.world != nil {
		observed.Round = m.world.record.Round
		observed.Progress = m.progress()
		observed.Elastic = m.isElastic()
		observed.Stragglers, observed.Watched = m.stragglers(), m.pace.Knows()
	}
	for uid, mem := range m.members {
		observed.Members[uid] = m.observeMember(uid, mem)
	}
	return observed
}

func (m *Machine) observeMember(uid string, mem *member) MemberObservation {
	seen := MemberObservation{
		Joined: mem.joined, Connected: mem.connected, LastSeen: mem.lastSeen,
		Silent: mem.silent, CutOff: mem.cutOff && !m.isLost(mem), FailedAt: mem.failedAt, Fault: mem.fault(),
		Terminating: mem.report.Terminating, WorkerRank: -1, WasIn: mem.entered > 0,
		Standby: !mem.leaving() && m.isStandby(uid, mem), LostIn: mem.countedIn, Stays: m.stays(uid, mem), FellAt: mem.fellAt,
		Written: mem.report.Size.Written, SnapshotTrouble: cmp.Or(mem.report.SnapshotTrouble, mem.report.Uncopied.Why),
	}
	seen.Exited, seen.ExitCode = mem.exited()
	if mem.isAside() && !m.isLost(mem) && !mem.gone {
		seen.Aside, seen.AsideSince = mem.aside.why, mem.aside.since
	}
	if seen.CutOff && mem.probe.found == reached {
		seen.Witnesses = m.names(mem.probe.by)
	}
	if m.world != nil {
		seen.WorkerRank = m.world.ranks.rank(uid)
		seen.InWorld = mem.in(&m.world.record)
		if seen.WorkerRank >= 0 && mem.countedIn < m.world.record.Round {
			seen.LostIn = 0 // it has come back before anybody gave it up
		}
		seen.Out = seen.WorkerRank < 0 && mem.leaving() && (mem.left != nil || mem.report.Round > 0) && !m.detains(mem) && !m.feeds(mem)
	}
	return seen
}

// doing is what the job is in the middle of, in one word and in more.
func (m *Machine) doing() (Phase, string) {
	switch {
	case m.world == nil:
		return PhaseForming, ""
	case m.broken != nil:
		return m.recovering()
	case m.change != nil:
		return PhaseResizing, m.change.why
	case m.world.phase != "" && !m.world.formed():
		return m.world.phase, m.world.why
	}
	return PhaseTraining, m.world.calledOff
}

// recovering is the same while a world is left.
func (m *Machine) recovering() (Phase, string) {
	why := m.broken.why
	switch {
	case m.awaitsRestore() && m.restoring.later:
		if !m.broken.gaveUp {
			why += "; the storage has a later state than those who are left hold, which is brought"
		}
	case m.awaitsRestore():
		why += "; those who are left hold no whole snapshot, what is missing is brought from the storage"
	}
	switch {
	case m.broken.regrouping:
		return PhaseRegrouping, why
	case m.broken.planned:
		return PhaseResizing, why
	}
	return PhaseRecovering, why
}

// progress is how far the world is: as far as the slowest process that has reported.
func (m *Machine) progress() Progress {
	slowest := uint64(math.MaxUint64)
	progress := Progress{StepTime: m.stepTime()}
	for rank, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil || !mem.in(&m.world.record) {
			continue
		}
		for i := range mem.report.Processes {
			p := &mem.report.Processes[i]
			done := p.Done
			if done == 0 && m.gang.Strategy == Restart {
				done = m.world.record.FromStep // it was just started, and has said nothing yet
			}
			if done < slowest {
				slowest = done
				progress.Step, progress.Samples = done, p.Samples
			}
			progress.TotalSteps = max(progress.TotalSteps, p.LastStep)
		}
		if rank == 0 && len(mem.report.Processes) > 0 {
			progress.Metrics = slices.Clone(mem.report.Processes[0].Metrics)
		}
	}
	return progress
}
