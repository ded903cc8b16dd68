package rendezvous

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxShown is how many members an inspection shows, of those that there is most to say about.
const maxShown = 100

// Inspection is what is known of a job's machine, for people who ask what it waits for. Its size is bounded, however
// many members there are. Nothing in it is secret.
type Inspection struct {
	JobUID  string
	At      time.Time
	Attempt int32
	Term    uint64
	// Deposed is true when another leader has taken the job over, Released when all members were let go.
	Deposed, Released bool
	Phase             Phase
	// Stage is what the change that is under way waits for, Waits says so in a sentence; empty when nothing changes.
	Stage Stage
	Waits string
	// Why says why the world changes, or which change of it was called off last.
	Why string
	// World is nil while there is none.
	World *WorldInspection
	// Barrier, Recovery and Write are nil when there is none.
	Barrier  *BarrierInspection
	Recovery *RecoveryInspection
	Write    *WriteInspection
	// NextTry is from when on a planned change may be tried again, Tries how many have come to nothing.
	NextTry time.Time `json:",omitzero"`
	Tries   int
	Changes []Change
	Losses  []Loss
	Fatal   string
	Count   MemberCount
	// Members are at most 100, those first that are awaited, and then those that were heard longest ago.
	Members []MemberInspection
	// NotShown is how many there are beyond them.
	NotShown int
}

// WorldInspection is the world that there is.
type WorldInspection struct {
	Round, Parent, FromStep uint64
	Workers                 int32
	Reason                  Reason
	Adopted, Finishing      bool
	Since                   time.Time
	// Entered is how many members have reported it, Step how many steps every process has done, Furthest how many
	// the first of them; StepAt is when that was seen.
	Entered                    int
	Step, Furthest, TotalSteps uint64
	StepAt                     time.Time `json:",omitzero"`
}

// BarrierInspection is a planned change.
type BarrierInspection struct {
	Attempt, Step uint64
	// Moved is how many attempts there were in this change.
	Moved int32
	Since time.Time
	// Arrived is true once all were seen at the barrier. Saver is who takes the snapshot then.
	Arrived bool
	Saver   string
	// Hold is the newest hold, OldestHold when the oldest one was given that still keeps a member standing: it lasts
	// for 30 s.
	Hold       uint64
	OldestHold time.Time
}

// RecoveryInspection is what is done about a world that is left.
type RecoveryInspection struct {
	Since time.Time
	// Judged is true once it is known whose fault it was; Accused are the pods whose it was.
	Judged  bool
	Accused []string
	Saver   string
}

// WriteInspection is a record that is being written, or is to be tried again.
type WriteInspection struct {
	// Asked is true while nobody has answered. Round and Term are those that are written then.
	Asked       bool
	Round, Term uint64
	// Unclear is how many in a row had no clear answer, NotBefore when the next one may be tried.
	Unclear   int
	NotBefore time.Time `json:",omitzero"`
}

// MemberCount counts the members. One may count more than once.
type MemberCount struct {
	Expected, Joined, Connected, InWorld, Standby, Leaving, Silent, Lost, Aside, Exited, Refused, Awaited int
}

// MemberInspection is one member.
type MemberInspection struct {
	Name, UID, Node string
	// WorkerRank is its rank in the world; -1 for none.
	WorkerRank int32
	// Awaited is true when it is one of those that the change waits for.
	Awaited bool
	// Joined is true once it was heard, Connected while it has a session.
	Joined, Connected, InWorld, Standby, Out, Silent, Lost bool
	Leaving                                                Reason
	LastSeen                                               time.Time `json:",omitzero"`
	// Term, Round and Hold are what it has obeyed, Refused is a round that it could not go on to.
	Term, Round, Hold, Refused uint64
	// Entered and Done are steps that its slowest process has begun and done. Stop is where its barrier stops it.
	Entered, Done, Barrier, Stop uint64
	Waiting                      string
	Exited                       bool
	ExitCode                     int32
	Fault                        string
	// Aside is why it is in no world until its peers reach it; empty while it is not set aside.
	Aside string `json:",omitempty"`
}

// Inspect returns what is known.
func (m *Machine) Inspect(now time.Time) Inspection {
	u := m.Underway()
	in := Inspection{
		JobUID: m.gang.JobUID, At: now, Attempt: m.gang.Attempt, Term: m.term, Deposed: m.deposed, Released: m.released,
		Stage: u.Stage, World: m.inspectWorld(), Barrier: m.inspectBarrier(now), Recovery: m.inspectRecovery(),
		Write: m.inspectWrite(), NextTry: m.nextTry, Tries: m.tries, Changes: slices.Clone(m.changes),
		Losses: slices.Clone(m.losses), Fatal: brief(m.fatal),
	}
	in.Phase, in.Why = m.doing()
	for i := range in.Losses {
		in.Losses[i].Message = brief(in.Losses[i].Message)
	}
	m.inspectMembers(&in, u.Stage)
	return in
}

func (m *Machine) inspectWorld() *WorldInspection {
	if m.world == nil {
		return nil
	}
	w, progress := m.world, m.progress()
	return &WorldInspection{
		Round: w.record.Round, Parent: w.record.Parent, FromStep: w.record.FromStep, Workers: w.record.Workers,
		Reason: w.record.Reason, Adopted: w.adopted, Finishing: w.finishing, Since: w.since, Entered: w.entered,
		Step: progress.Step, Furthest: m.furthest(), TotalSteps: progress.TotalSteps, StepAt: m.stepAt,
	}
}

func (m *Machine) inspectBarrier(now time.Time) *BarrierInspection {
	c := m.change
	if c == nil || m.world == nil {
		return nil
	}
	return &BarrierInspection{
		Attempt: c.attempt, Step: c.step, Moved: c.attempts, Since: c.began, Arrived: c.arrived,
		Saver: m.nameOf(c.saver), Hold: m.hold, OldestHold: m.oldestHold(now),
	}
}

func (m *Machine) inspectRecovery() *RecoveryInspection {
	r := m.broken
	if r == nil {
		return nil
	}
	in := &RecoveryInspection{Since: r.began, Judged: r.judged, Saver: m.nameOf(r.saver)}
	for uid := range r.raised {
		in.Accused = append(in.Accused, m.nameOf(uid))
	}
	slices.Sort(in.Accused)
	in.Accused = in.Accused[:min(len(in.Accused), maxShown)]
	return in
}

func (m *Machine) inspectWrite() *WriteInspection {
	if m.writing == nil && m.failures == 0 {
		return nil
	}
	in := &WriteInspection{Unclear: m.failures, NotBefore: m.notBefore}
	if m.writing != nil {
		in.Asked, in.Round, in.Term = true, m.writing.Next.Round, m.writing.Next.Term
	}
	return in
}

func (m *Machine) nameOf(uid string) string {
	if mem := m.members[uid]; mem != nil {
		return mem.want.Name
	}
	return uid
}

// inspectMembers counts the members, shows some of them, and says for whom the stage waits.
func (m *Machine) inspectMembers(in *Inspection, stage Stage) {
	type candidate struct {
		uid     string
		mem     *member
		awaited bool
	}
	all := make([]candidate, 0, len(m.members))
	for uid, mem := range m.members {
		all = append(all, candidate{uid, mem, m.waitsFor(stage, uid, mem)})
	}
	matters := func(c candidate) int {
		switch {
		case c.awaited:
			return 0
		case c.mem.isAside():
			return 1
		}
		return 2
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(matters(a), matters(b)), a.mem.lastSeen.Compare(b.mem.lastSeen), strings.Compare(a.uid, b.uid))
	})
	var awaited []string
	for i, c := range all {
		one := m.inspectMember(c.uid, c.mem)
		if one.Awaited = c.awaited; c.awaited {
			awaited = append(awaited, one.Name)
		}
		in.Count.add(&one)
		if i < maxShown {
			in.Members = append(in.Members, one)
		}
	}
	in.NotShown = len(all) - len(in.Members)
	in.Waits = m.waits(stage, awaited)
}

// add counts a member.
func (c *MemberCount) add(one *MemberInspection) {
	for _, each := range [...]struct {
		counter *int
		counts  bool
	}{
		{&c.Expected, true}, {&c.Joined, one.Joined}, {&c.Connected, one.Connected}, {&c.InWorld, one.InWorld},
		{&c.Standby, one.Standby}, {&c.Leaving, one.Leaving != ""}, {&c.Silent, one.Silent}, {&c.Lost, one.Lost}, {&c.Aside, one.Aside != ""},
		{&c.Exited, one.Exited}, {&c.Refused, one.Refused > 0}, {&c.Awaited, one.Awaited},
	} {
		if each.counts {
			*each.counter++
		}
	}
}

func (m *Machine) inspectMember(uid string, mem *member) MemberInspection {
	r, seen := &mem.report, m.observeMember(uid, mem)
	one := MemberInspection{
		Name: mem.want.Name, UID: uid, Node: mem.want.Node, WorkerRank: seen.WorkerRank,
		Joined: seen.Joined, Connected: seen.Connected, InWorld: seen.InWorld, Standby: seen.Standby, Out: r.Out,
		Silent: seen.Silent, Lost: m.isLost(mem), Leaving: mem.want.Leaving, LastSeen: seen.LastSeen,
		Term: r.Term, Round: r.Round, Hold: r.Hold, Refused: r.Refused,
		Exited: seen.Exited, ExitCode: seen.ExitCode, Fault: brief(seen.Fault), Aside: seen.Aside,
	}
	var slowest *Process
	for i := range r.Processes {
		if p := &r.Processes[i]; slowest == nil || p.Done < slowest.Done || p.Done == slowest.Done && p.Entered < slowest.Entered {
			slowest = p
		}
	}
	if slowest != nil {
		one.Entered, one.Done, one.Barrier, one.Stop = slowest.Entered, slowest.Done, slowest.Barrier, slowest.Stop
		one.Waiting = slowest.Waiting.word()
	}
	return one
}

// word is what a process waits for; empty for nothing.
func (w Waiting) word() string {
	names := [...]string{"", "join", "parked", "aborted", "fault", "finished"}
	if w < 0 || int(w) >= len(names) {
		return fmt.Sprintf("%d", int32(w))
	}
	return names[w]
}

// waitsFor says whether the stage waits for a member.
func (m *Machine) waitsFor(stage Stage, uid string, mem *member) bool {
	if m.world == nil {
		return m.firstWaitsFor(stage, mem)
	}
	if m.world.ranks.rank(uid) < 0 || m.isLost(mem) {
		return false
	}
	switch stage {
	case StageBarrier:
		return !m.standsAtBarrier(mem)
	case StageSnapshot:
		return m.change != nil && (m.change.saver == uid || m.change.together.has(uid)) ||
			m.broken != nil && (m.broken.saver == uid || m.broken.together.has(uid))
	case StageLeave:
		return m.broken.raised[uid] || !m.isOut(mem) || !mem.connected
	case StageForm:
		return mem.entered != m.world.record.Round
	case StageStep:
		return m.pending.awaited[uid] || m.pending.Inherited && !m.pending.said[uid]
	}
	return false
}

// firstWaitsFor says whether the first world that this leader knows of waits for a member.
func (m *Machine) firstWaitsFor(stage Stage, mem *member) bool {
	switch {
	case m.over() || mem.unwanted():
		return false
	case stage == StageAdopt || stage == StageTerm:
		return !mem.joined
	}
	return stage == StageNone && !mem.ready() && !mem.want.Starting
}

// standsAtBarrier says whether all processes of a member stand where the barrier is, under this leader's term.
func (m *Machine) standsAtBarrier(mem *member) bool {
	c := m.change
	if !mem.in(&m.world.record) || mem.report.Term != m.term || len(mem.report.Processes) == 0 {
		return false
	}
	return !mem.report.any(func(p *Process) bool {
		return p.Waiting != waitingParked || p.Done != c.step || p.Stop != c.step || p.Barrier != c.attempt
	})
}

// waits says in a sentence what the stage waits for.
func (m *Machine) waits(stage Stage, awaited []string) string {
	names := list(awaited)
	if len(awaited) == 0 {
		names = "nobody"
	}
	switch {
	case stage == StageTerm:
		return fmt.Sprintf("this leader's term is being made durable, over round %d", m.base.Round)
	case stage == StageAdopt:
		return fmt.Sprintf("round %d stands in the record, and it is not known what became of it: not heard yet: %s", m.base.Round, names)
	case stage == StageBarrier:
		return fmt.Sprintf("not all processes stand after step %d: waits for %s", m.change.step, names)
	case stage == StageSnapshot:
		return fmt.Sprintf("a snapshot is being taken by %s", names)
	case stage == StageLeave:
		return fmt.Sprintf("everybody is to leave round %d: waits for %s", m.world.record.Round, names)
	case stage == StageRegroup:
		return fmt.Sprintf("too few workers are left of round %d: %d are needed", m.world.record.Round, m.gang.Minimum)
	case stage == StageRecord && m.writing == nil:
		return fmt.Sprintf("the record of the next world is written again, after %d answers that were not clear", m.failures)
	case stage == StageRecord:
		return fmt.Sprintf("the record of round %d is being written", m.writing.Next.Round)
	case stage == StageForm:
		return fmt.Sprintf("round %d is published, and not entered by all: waits for %s", m.world.record.Round, names)
	case stage == StageStep:
		return fmt.Sprintf("not all have begun their first step in round %d: waits for %s", m.world.record.Round, names)
	case m.world == nil && len(awaited) > 0 && m.fatal == "":
		return "the first world waits for " + names
	}
	return ""
}
