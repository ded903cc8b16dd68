package rendezvous

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/deviceerror"
)

// settleTime is how long after the first fault the operator waits for what explains it.
const settleTime = 2 * time.Second

// ExitDevice is the exit code of a program that has found a device of its node broken. Agents end with it, and it is nobody's
// fault but the node's.
const ExitDevice = 113

// communicationError matches the last line of what programs say that fail because a peer has gone.
var communicationError = regexp.MustCompile(`(?i)connection (reset|refused|closed|timed out)|i/o timeout|no route to host|network is unreachable|closed network connection|broken pipe|socket timeout|gloo|nccl|\bEOF\b|DistNetworkError|DistBackendError|peer`)

// CommunicationError says whether a program's error, such as a traceback, is one that comes of a peer that
// has gone: its last line is what counts. It never proves that the program is blameless.
func CommunicationError(text string) bool { return communicationError.MatchString(lastLine(text)) }

// faulted says whether a program has failed in a way that may only be the consequence of a loss: in place
// it waits for a verdict. A program that is started anew in each world knows no other way to fail than to
// exit.
func (mem *member) faulted() bool { return !mem.faultedAt.IsZero() }

// anyFault counts the members of the world that report a fault.
func (m *Machine) anyFault() int {
	n := 0
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem != nil && m.accuses(mem) {
			n++
		}
	}
	return n
}

// accuses says whether a member has a fault of the world that there is. A program that ended after its
// agent was told to stop it has none.
func (m *Machine) accuses(mem *member) bool {
	return mem.faulted() && mem.report.Round == m.world.record.Round &&
		(!mem.faultExit || m.broken == nil || !mem.faultedAt.After(m.broken.began))
}

// fault is one member's exception.
type fault struct {
	uid    string
	mem    *member
	rank   int
	text   string
	exited bool
}

// faults are the exceptions in the world that may be the program's own, earliest first. Members that were
// lost without one explain all of them.
func (m *Machine) faults() (faults []fault, explained bool) {
	for rank, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		switch {
		case mem == nil:
			explained = explained || uid != "" && !m.world.parted[uid].well || uid == "" && m.world.missing
			continue
		case !m.accuses(mem):
			explained = explained || m.isLost(mem) && mem.fault() == ""
			continue
		}
		one := fault{uid: uid, mem: mem, rank: rank, text: mem.faultText, exited: mem.faultExit}
		faults = append(faults, one)
	}
	slices.SortStableFunc(faults, func(a, b fault) int {
		return cmp.Or(a.mem.faultedAt.Compare(b.mem.faultedAt), cmp.Compare(a.rank, b.rank))
	})
	return faults, explained
}

// judge decides whose fault it is that the world broke. It returns false while that is open.
func (m *Machine) judge(now time.Time) bool {
	r := m.broken
	if r.judged {
		m.judgeAlike()
		return true
	}
	faults, explained := m.faults()
	switch {
	case len(faults) == 0 || r.planned || explained:
		r.judged = true
		if len(faults) > 0 {
			m.note(notedVerdict, "the faults of %d workers of round %d come of its end", len(faults), m.world.record.Round)
		}
		return true
	case now.Sub(faults[0].mem.faultedAt) < settleTime:
		return false
	}
	r.judged = true
	own := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return CommunicationError(f.text) })
	switch {
	case len(own) == 0 && !m.retriedHere():
		r.retry, r.reason = true, ReasonRetried
		m.note(notedVerdict, "round %d broke, and nobody knows by whom: it is tried once more", m.world.record.Round)
	case len(own) == 0:
		m.accuse(now, faults[:1])
	case m.everywhere(own):
		m.accuse(now, own)
		r.alike = fmt.Sprintf("the program fails in every worker alike; first in %s:\n%s", own[0].mem.want.Name, own[0].text)
		if !deviceerror.Is(own[0].text) {
			m.loseAll(now, own)
		}
		m.judgeAlike()
	default:
		m.accuse(now, own[:1])
	}
	return true
}

// everywhere says whether all workers of the world have failed with the same exception. Exit codes say
// too little for that: launchers have one for everything.
func (m *Machine) everywhere(own []fault) bool {
	if m.gang.Strategy == Restart || len(own) != len(m.world.ranks.uids) {
		return false
	}
	for i := range own {
		if lastLine(own[i].text) != lastLine(own[0].text) {
			return false
		}
	}
	return true
}

// judgeAlike ends the attempt once every worker has failed alike. After an error of devices each of them may yet find that its own
// is broken, as that of an only worker.
func (m *Machine) judgeAlike() {
	r := m.broken
	if r.alike == "" {
		return
	}
	for _, uid := range m.world.ranks.uids {
		if mem := m.members[uid]; mem != nil && !m.isLost(mem) {
			return
		}
	}
	why := r.alike
	r.alike = ""
	if !slices.ContainsFunc(m.lossesNow(), func(l Loss) bool { return !l.Program }) {
		m.fail(why)
	}
}

// accuse lets the programs fail whose fault it was.
func (m *Machine) accuse(now time.Time, culprits []fault) {
	r := m.broken
	r.raised, r.raisedAt, m.out.Publish = map[string]bool{}, now, true
	for i := range culprits {
		f := &culprits[i]
		m.note(notedVerdict, "round %d broke by the program in %s: %s", m.world.record.Round, f.mem.want.Name, brief(f.text))
		if f.exited {
			why := cause{true, f.text}
			if f.mem.code() == ExitDevice {
				why = f.mem.brokenDevice()
			}
			m.lose(now, f.uid, f.mem, why.program, why.text)
			continue
		}
		r.raised[f.uid] = true
	}
}

// loseAll counts programs as lost that are yet to fail: nobody waits for that any more.
func (m *Machine) loseAll(now time.Time, culprits []fault) {
	for i := range culprits {
		if f := &culprits[i]; !m.isLost(f.mem) {
			m.lose(now, f.uid, f.mem, true, f.text)
		}
	}
}

// retriedHere says whether a world was re-formed without a culprit before, and has made no step of
// progress since.
func (m *Machine) retriedHere() bool { return m.retried != nil && m.furthest() <= *m.retried }

// findHang breaks a world that makes no step although every process is about to make one.
func (m *Machine) findHang(now time.Time) {
	w := m.world
	since := w.since
	if m.stepAt.After(since) {
		since = m.stepAt
	}
	if m.gang.HangTimeout <= 0 || m.change != nil || now.Sub(since) < m.gang.HangTimeout || !w.formed() {
		return
	}
	lowest, highest, finished, all := m.aboutToStep()
	if !all {
		return
	}
	why := fmt.Sprintf("no step was made for %s", m.gang.HangTimeout)
	if len(finished) > 0 {
		for _, uid := range finished {
			m.lose(now, uid, m.members[uid], true, fmt.Sprintf(
				"it has finished after step %d, and others are about to make further ones: the ranks disagree about the end; %s", m.members[uid].report.furthest(), why))
		}
		m.breakWorld(now, &recovery{reason: ReasonHung, hung: true, why: why})
		return
	}
	ahead := m.tooFarAhead(lowest)
	switch {
	case len(ahead) > 0:
		for _, mem := range ahead {
			m.lose(now, mem.want.UID, mem, true, fmt.Sprintf(
				"it says that it has begun step %d, and most others have begun none after %d: %s", mem.furthestBegun(), lowest+1, why))
		}
		m.breakWorld(now, &recovery{reason: ReasonHung, hung: true, why: why})
	case lowest < highest:
		for _, uid := range w.ranks.uids {
			mem := m.members[uid]
			if mem.report.any(func(p *Process) bool { return p.Entered == lowest }) {
				m.lose(now, uid, mem, true, fmt.Sprintf("it hangs before step %d, which others have begun: %s", lowest+1, why))
			}
		}
		m.breakWorld(now, &recovery{reason: ReasonHung, hung: true, why: why})
	case m.retriedHere():
		why += ", and again after the world was formed anew: every worker hangs at the same step"
		for _, uid := range w.ranks.uids {
			m.lose(now, uid, m.members[uid], true, fmt.Sprintf("it hangs after step %d, as all others do", m.furthest()))
		}
		m.fail(why)
	default:
		m.breakWorld(now, &recovery{reason: ReasonHung, hung: true, retry: true, judged: true, why: why})
	}
}

// aboutToStep says whether every process of the world is about to make a step or has finished, though not all have, and
// between which steps the last ones lie that those have begun who are about to.
func (m *Machine) aboutToStep() (lowest, highest uint64, finished []string, all bool) {
	lowest = uint64(MaxCount)
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil || !mem.in(&m.world.record) || !mem.connected || len(mem.report.Processes) == 0 {
			return 0, 0, nil, false
		}
		for i := range mem.report.Processes {
			p := &mem.report.Processes[i]
			switch {
			case p.Waiting == waitingFinished && !p.Exited:
				if !slices.Contains(finished, uid) {
					finished = append(finished, uid)
				}
				continue
			case p.Exited || p.Waiting != waitingNone || p.ProgramPhase != phaseStep && p.ProgramPhase != phaseData:
				return 0, 0, nil, false
			}
			all = true
			lowest, highest = min(lowest, p.Entered), max(highest, p.Entered)
		}
	}
	return lowest, highest, finished, all
}
