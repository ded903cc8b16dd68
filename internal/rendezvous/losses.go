package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/concertina-dev/concertina/internal/deviceerror"
)

const (
	// maxChanges and maxLosses are how many are remembered.
	maxChanges = 16
	maxLosses  = 64
	// disagreeAfter is how long a program may have ended well while others train.
	disagreeAfter = 30 * time.Second
	// killAfter is how long after abort agents kill programs that have not answered, exitKilled their
	// exit code then.
	killAfter  = 4500 * time.Millisecond
	exitKilled = 137
)

// isLost says whether the member has been lost in the world that there is.
func (m *Machine) isLost(mem *member) bool {
	return m.world != nil && mem.lostIn == m.world.record.Round
}

// findLosses finds out who is lost.
func (m *Machine) findLosses(now time.Time) {
	m.findMissing(now)
	for i := range m.gang.Members {
		uid := m.gang.Members[i].UID
		if mem := m.members[uid]; m.world.ranks.rank(uid) < 0 && !mem.gone {
			m.loseStandby(now, uid, mem)
		}
	}
	faults := m.anyFault()
	steadyAt := m.steadyAt(now, faults)
	m.askAboutAway(now, faults)
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil || m.isLost(mem) {
			continue
		}
		if program, why := m.lossOf(now, mem, faults, steadyAt); why != "" {
			m.lose(now, uid, mem, program, why)
		}
	}
}

// loseStandby takes note of a member that is lost without having been in the world.
func (m *Machine) loseStandby(now time.Time, uid string, mem *member) {
	exited, code := mem.exited()
	started := mem.report.Round == 0
	switch why := m.asideLoss(now, mem); {
	case why != "":
		mem.gone = true
		m.addLoss(Loss{UID: uid, Name: mem.want.Name, Rank: -1, At: now, Message: why})
	case mem.left != nil || !started && (mem.want.Lost == "" || mem.countedIn >= mem.report.Round):
		// It was let go, or waits after a world that goes on without it, or is one of the losses of that.
	case exited || mem.failed():
		mem.gone = true
		why := cause{true, fmt.Sprintf("its program exited with code %d before it was in a world", max(code, mem.code()))}
		if mem.code() == ExitDevice {
			why = mem.brokenDevice()
		}
		m.addLoss(Loss{UID: uid, Name: mem.want.Name, Program: why.program, Rank: -1, At: now, Message: why.text})
	case mem.want.Lost != "":
		loss := Loss{UID: uid, Name: mem.want.Name, Rank: -1, At: now, Message: mem.want.Lost}
		if m.world.adopted && !mem.joined && !m.world.whole() {
			if !m.world.missing {
				return // its rank may be one of those that are yet to be reported
			}
			// Whoever was never heard held one of the ranks that nobody holds now.
			loss.Round = m.world.record.Round
		}
		mem.gone = true
		m.addLoss(loss)
	}
}

// lossOf says why a member of the world is lost, and whether its program is at fault; empty when it is not.
func (m *Machine) lossOf(now time.Time, mem *member, faults int, steadyAt time.Time) (program bool, why string) {
	if why := m.exitLoss(now, mem); why.text != "" {
		return why.program, why.text
	}
	if mem.want.Lost != "" {
		return false, mem.want.Lost
	}
	if m.world.finishing {
		return false, ""
	}
	if m.accuses(mem) {
		faults-- // others than its own
	}
	exited, code := mem.exited()
	switch {
	case exited && code == 0 && m.broken == nil && mem.in(&m.world.record):
		return false, "" // it is done, and others may take a moment longer
	case !mem.connected && mem.want.Ended:
		return false, "its pod has ended"
	}
	if why := m.awayLoss(now, mem, faults, steadyAt); why != "" {
		return false, why
	}
	if why := m.asideLoss(now, mem); why != "" {
		return false, why
	}
	return false, m.silenceLoss(now, mem)
}

// steadyAt is when a member of the world was heard last that has not had to connect again lately; it is asked for
// when there are faults. When all sessions have ended, it is the link to this operator that broke.
func (m *Machine) steadyAt(now time.Time, faults int) time.Time {
	var last time.Time
	if faults == 0 {
		return last
	}
	for _, uid := range m.world.ranks.uids {
		if mem := m.members[uid]; mem != nil && mem.connected && now.Sub(mem.hungUp) > m.gang.HeartbeatTimeout {
			last = latest(last, mem.lastSeen)
		}
	}
	return last
}

// cause is why a member is lost.
type cause struct {
	program bool
	text    string
}

// exitLoss says whether a member is lost because its program has ended.
func (m *Machine) exitLoss(now time.Time, mem *member) cause {
	if m.broken != nil && m.broken.raised[mem.want.UID] {
		return m.raisedLoss(now, mem)
	}
	if mem.report.Round != m.world.record.Round &&
		(m.gang.Strategy != InPlace || mem.report.Round == 0 || mem.report.Round != m.world.record.Parent) {
		return cause{} // how programs end that were stopped for another world means nothing
	}
	switch {
	case mem.anew() && mem.report.Round == m.world.record.Round:
		return m.failureCause(mem)
	case mem.failed() && (m.gang.Strategy == InPlace || mem.report.Terminating):
		return m.exitOf(now, mem)
	case !m.world.finishing && !mem.endedAt.IsZero() && now.Sub(mem.endedAt) >= disagreeAfter:
		return cause{true, fmt.Sprintf(
			"its program ended with code 0 and others have not finished %s later: the ranks disagree about the end", disagreeAfter)}
	}
	return cause{}
}

// raisedLoss says the same of a member whose fault it was that the world broke, and that was told so.
func (m *Machine) raisedLoss(now time.Time, mem *member) cause {
	exited, _ := mem.exited()
	patience, ended := outTimeout, mem.failed() || exited
	if deviceerror.Is(mem.faultText) {
		patience, ended = deviceerror.CheckTimeout, exited || mem.want.Ended // one process may look at its device longer than another
	}
	switch {
	case mem.code() == ExitDevice:
		return mem.brokenDevice()
	case ended || !now.Before(m.broken.raisedAt.Add(patience)):
		return cause{true, mem.faultText}
	}
	return cause{}
}

// exitOf says what the exit of a program in the middle of a world means.
func (m *Machine) exitOf(now time.Time, mem *member) cause {
	code := mem.code()
	fault := mem.fault()
	switch {
	case code == ExitDevice:
		return mem.brokenDevice()
	case fault != "":
		return cause{!CommunicationError(fault), fault}
	case mem.report.Failure.Killed && mem.report.Failure.Round == mem.report.Round,
		m.broken != nil && code == exitKilled && now.Sub(m.broken.began) >= killAfter:
		return m.notLeaving()
	case mem.report.Terminating:
		return cause{false, fmt.Sprintf("its pod was told to end, and its program exited with code %d", code)}
	}
	return cause{true, fmt.Sprintf("its program exited with code %d", code)}
}

// brokenDevice says of a member that it is lost by a device of its node.
func (mem *member) brokenDevice() cause {
	text := fmt.Sprintf("a device of its node is broken, as its program has found out (exit code %d)", ExitDevice)
	if fault := mem.fault(); fault != "" {
		text += ": " + brief(fault)
	}
	return cause{false, text}
}

// lose marks a member of the world as lost.
func (m *Machine) lose(now time.Time, uid string, mem *member, program bool, why string) {
	round := m.world.record.Round
	mem.lostIn, mem.spent, mem.aside.lost = round, program && !m.gang.MayRestart, mem.isAside()
	if mem.fellAt.IsZero() {
		mem.fellAt = now
	}
	if m.wentAsPlanned(mem) {
		return // nothing of it is lost
	}
	m.addLoss(Loss{
		UID: uid, Name: mem.want.Name, Program: program, Round: round, Rank: m.world.ranks.rank(uid), At: now, Message: why,
	})
	m.note(notedLost, "round %d has lost %s: %s", round, mem.want.Name, brief(why))
}

// wentAsPlanned says whether a member was to leave the world, and does nothing there any more: it has left the world, which was
// given up for that, or stands at its barrier while the record is being written of the one that goes on without it.
func (m *Machine) wentAsPlanned(mem *member) bool {
	switch r, w := m.broken, m.writing; {
	case m.world == nil || !mem.leaving() && mem.wentFrom != m.world.record.Round:
		return false
	case r != nil:
		return (r.planned || r.wished) && m.isOut(mem)
	default:
		return w != nil && w.plan != nil && w.plan.change != nil && w.plan.change == m.change &&
			mem.report.has(waitingParked) && !mem.failed()
	}
}

// addLoss takes note of a loss. Whoever was lost in a round that was burned since, as the one before it lives, is lost once: in that.
func (m *Machine) addLoss(loss Loss) {
	others := slices.DeleteFunc(slices.Clone(m.losses), func(l Loss) bool { return l.UID == loss.UID && loss.Round > 0 && l.Round > loss.Round })
	again := len(others) < len(m.losses)
	m.losses = others
	if len(m.losses) == maxLosses {
		m.losses = m.losses[1:]
	}
	mem := m.members[loss.UID]
	if mem != nil {
		mem.countedIn, loss.Unreached = loss.Round, mem.isAside() && !loss.Program
	}
	m.losses = append(m.losses, loss)
	if !again {
		m.out.Lost = append(m.out.Lost, causeOf(&loss, mem))
	}
	m.out.Changed = true
}

// parted takes note of a member that does not belong to the gang any more.
func (m *Machine) parted(now time.Time, uid string, mem *member) {
	exited, code := mem.exited()
	well := exited && code == 0
	ranked := m.world != nil && m.world.ranks.rank(uid) >= 0
	switch {
	case m.world != nil && m.world.whole() && !ranked: // it is known who holds the ranks
	case mem.want.Ended:
		m.departed[uid] = departure{ordinal: mem.want.Ordinal}
	case mem.report.Round > 0 && (exited || mem.failed() || mem.report.Out):
		m.departed[uid] = departure{mem.report.Round, mem.want.Ordinal}
	}
	if !ranked {
		return
	}
	m.world.parted[uid] = parting{
		well: well, over: mem.want.Ended || exited || mem.failed() || m.isOut(mem), entered: mem.entered,
	}
	if well || m.world.finishing || m.isLost(mem) {
		return
	}
	why := cause{false, mem.want.Lost}
	switch {
	case mem.failed():
		why = m.exitOf(now, mem)
	case why.text == "":
		why.text = "its pod is gone"
	}
	m.lose(now, uid, mem, why.program, why.text)
}

// findMissing finds out whether an adopted world has ranks that nobody holds any more.
func (m *Machine) findMissing(now time.Time) {
	w := m.world
	if !w.adopted || w.missing || w.whole() {
		return
	}
	late := now.Sub(m.since) > m.gang.HeartbeatTimeout+m.reconnectGrace && now.Sub(m.stepAt) > m.gang.HeartbeatTimeout
	heard := true
	for _, mem := range m.members {
		heard = heard && (w.named || mem.joined || mem.want.Lost != "" || mem.want.Ended || late && mem.want.NodeNotReady && m.slow(now))
	}
	if heard || late && (m.broken != nil || m.standsStill(now) || m.hangs(now, latest(m.since, m.stepAt))) {
		w.missing = true
		nobody := len(w.ranks.uids) - len(w.ranks.ranks)
		m.note(notedLost, "round %d has lost %d workers that this operator has never heard", w.record.Round, nobody)
		m.nameMissing(now, nobody)
	}
}

// nameMissing finds out who held the ranks that nobody has reported: the members that were never heard. If
// there are more of them, some are newcomers: those count whom the digest of the world tells, or else who should not be starting any
// more. Where more are left even so, nobody is named: that some are missing is enough to go on without them.
func (m *Machine) nameMissing(now time.Time, ranks int) {
	if m.world.named {
		return // who has a rank is in the table
	}
	var unheard, settled []*member
	var absent []string
	for i := range m.gang.Members {
		mem := m.members[m.gang.Members[i].UID]
		if mem.joined {
			continue
		}
		absent = append(absent, mem.want.UID)
		if mem.want.Lost != "" || mem.want.Ended || m.wasToJoin(mem) {
			continue
		}
		unheard = append(unheard, mem)
		if !mem.want.Starting {
			settled = append(settled, mem)
		}
	}
	if len(unheard) > ranks {
		if uids := m.world.ranks.complete(absent); uids != nil {
			settled = slices.DeleteFunc(unheard, func(mem *member) bool { return !slices.Contains(uids, mem.want.UID) })
		}
		if unheard = settled; len(unheard) > ranks {
			return
		}
	}
	for _, mem := range unheard {
		mem.gone, mem.lostIn = true, m.world.record.Round
		m.addLoss(Loss{
			UID: mem.want.UID, Name: mem.want.Name, Round: m.world.record.Round, Rank: -1, At: now,
			Message: "it was not heard since another operator leads",
		})
	}
}

// wasToJoin says whether a member was to be in the world after this one, which came to nothing, and was not in this one: whoever
// goes on keeps a rank below the number of workers that there were.
func (m *Machine) wasToJoin(mem *member) bool {
	rank, named := m.naming().ranks[mem.want.Ordinal]
	return m.world.record.Round == m.base.Parent && named && rank >= int(m.base.From)
}

// lostOnes counts the members of the world that are lost, and says whether one of them is known to have ended: the
// world makes no further step then, wherever the others are.
func (m *Machine) lostOnes() (lost int, ended bool) {
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		switch {
		case uid == "":
			if m.world.missing {
				lost++
				ended = ended || m.strangersEnded()
			}
		case mem == nil:
			if parting := m.world.parted[uid]; !parting.well {
				lost++
				ended = ended || parting.over
			}
		case m.isLost(mem):
			lost++
			ended = ended || mem.want.Ended
		}
	}
	return lost, ended
}

// strangersEnded says whether one of those who hold the ranks that nobody has reported is known to have ended. The
// record names them by the ordinals of their pods; of a record that names nobody, or is not that of this world, nothing
// is known: somebody else's end says nothing of this world.
func (m *Machine) strangersEnded() bool {
	if m.world.record.Round != m.base.Round {
		return false
	}
	ranks := m.naming().ranks
	holds := func(ordinal int32) bool {
		rank, named := ranks[ordinal]
		return named && m.world.ranks.uids[rank] == ""
	}
	for _, mem := range m.members {
		if mem.want.Ended && holds(mem.want.Ordinal) {
			return true
		}
	}
	for _, left := range m.departed {
		if holds(left.ordinal) && (left.round == 0 || left.round == m.world.record.Round) {
			return true
		}
	}
	return false
}

// lossesNow are the losses of the world that there is.
func (m *Machine) lossesNow() []Loss {
	var now []Loss
	for _, loss := range m.losses {
		if loss.Round == m.world.record.Round {
			now = append(now, loss)
		}
	}
	return now
}

// lastLoss names the first member that the world has lost, and why.
func (m *Machine) lastLoss() string {
	if losses := m.lossesNow(); len(losses) > 0 {
		return lossText(losses)
	}
	return "a worker was lost"
}

func lossText(losses []Loss) string {
	texts := make([]string, len(losses))
	for i := range losses {
		texts[i] = losses[i].Name + ": " + brief(losses[i].Message)
	}
	if len(texts) > 3 {
		return fmt.Sprintf("%s; and %d more were lost", strings.Join(texts[:3], "; "), len(texts)-3)
	}
	return strings.Join(texts, "; ")
}

// brief is the last line of a text, in as many bytes as a message has room for.
func brief(text string) string {
	const room = 300
	line := lastLine(text)
	if len(line) <= room {
		return line
	}
	return strings.ToValidUTF8(line[:room], "") + "…"
}

// lastLine is the last line that is not empty: of a traceback, the exception.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
