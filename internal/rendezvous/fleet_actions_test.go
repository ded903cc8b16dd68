package rendezvous

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
)

func (f *fleet) pick() *modelLeader {
	if len(f.leaders) == 0 {
		f.newLeader()
	}
	return f.leaders[rapid.SampledFrom(slices.Sorted(maps.Keys(f.leaders))).Draw(f.draws, "leader")]
}

// pickPod picks one that lives.
func (f *fleet) pickPod() *pod {
	alive := slices.DeleteFunc(f.uids(), func(uid string) bool { return f.pods[uid].dead })
	if len(alive) == 0 {
		f.t.Skip("nobody lives")
	}
	return f.pods[rapid.SampledFrom(alive).Draw(f.draws, "pod")]
}

func (f *fleet) newLeader() {
	if len(f.leaders) >= 2 {
		return
	}
	f.born++
	l := &modelLeader{id: f.born, machine: NewMachine(10*time.Second, fmt.Sprint("leader ", f.born)), judged: map[string]time.Time{}}
	f.leaders[l.id] = l
	_ = f.handle(l, GangExpected{f.gang()})
}

func (f *fleet) killLeader() {
	l := f.pick()
	f.kill(l)
}

func (f *fleet) kill(l *modelLeader) {
	delete(f.leaders, l.id)
	if l.writing != nil && l.result == nil {
		f.late = append(f.late, lateWrite{l.id, *l.writing})
	}
	for _, uid := range f.uids() {
		f.drop(f.pods[uid], l)
	}
}

// nobodyLeads has all operators go away for longer than a hold lasts, and the world train on.
func (f *fleet) nobodyLeads() {
	for _, id := range slices.Sorted(maps.Keys(f.leaders)) {
		f.kill(f.leaders[id])
	}
	for range holdTime/time.Second + 1 {
		f.pass(time.Second)
		for _, uid := range f.uids() {
			f.move(f.pods[uid])
		}
	}
	for _, uid := range f.uids() {
		if p := f.pods[uid]; !p.dead && !p.left && !p.frozen && !p.process.still && p.process.runs && p.process.waiting == waitingParked {
			f.t.Fatalf("nobody leads, and it stands at the barrier: %s", &p.worker)
		}
	}
}

// hearSome has another operator lead, which hears some workers alone: for a moment, or for longer than agents need to find it.
func (f *fleet) hearSome() {
	for _, id := range slices.Sorted(maps.Keys(f.leaders)) {
		f.kill(f.leaders[id])
	}
	if rapid.Bool().Draw(f.draws, "noticed") {
		f.notice()
	}
	f.newLeader()
	l := f.leaders[f.born]
	some := slices.DeleteFunc(f.uids(), func(string) bool { return rapid.Bool().Draw(f.draws, "unheard") })
	f.hears(l, time.Duration(rapid.SampledFrom([]int{1, 20}).Draw(f.draws, "seconds"))*time.Second, some...)
}

// hears has some workers and a leader hear each other for so long, and nobody else; the others go on by themselves.
func (f *fleet) hears(l *modelLeader, d time.Duration, uids ...string) {
	for began := f.now; f.now.Sub(began) < d; {
		if l.writing != nil {
			f.finishWrite(l)
		}
		for _, uid := range uids {
			if p := f.pods[uid]; !p.dead {
				f.meet(l, p)
			}
		}
		for _, uid := range f.uids() {
			f.move(f.pods[uid])
		}
		f.pass(300 * time.Millisecond)
	}
}

// otherVersion has operators of another version lead, which know nothing of handovers, or do.
func (f *fleet) otherVersion() {
	if !f.hands {
		f.t.Skip("nobody hands anything over")
	}
	for _, id := range slices.Sorted(maps.Keys(f.leaders)) {
		f.kill(f.leaders[id])
	}
	f.older = !f.older
	f.newLeader()
}

func (f *fleet) tellGang() { _ = f.handle(f.pick(), GangExpected{f.gang()}) }

// addPod makes a worker. Every leader knows it before it can be in a world: a gang names all pods of the
// attempt that may run.
func (f *fleet) addPod() {
	if len(f.pods) >= 7 {
		return
	}
	f.makePod()
	f.tellAllLeaders()
}

// tellAllLeaders has all leaders hear of the gang as it is now.
func (f *fleet) tellAllLeaders() {
	for _, id := range slices.Sorted(maps.Keys(f.leaders)) {
		_ = f.handle(f.leaders[id], GangExpected{f.gang()})
	}
}

func (f *fleet) leave() {
	p := f.pickPod()
	p.want.Leaving = ReasonScaledDown
	if rapid.Bool().Draw(f.draws, "hurry") {
		p.want.LeaveBy = f.now.Add(30 * time.Second)
	}
}

// killPod ends the processes of a worker, without a word.
func (f *fleet) killPod() {
	p := f.pickPod()
	p.vanished = rapid.Bool().Draw(f.draws, "vanished")
	f.end(p)
}

func (f *fleet) end(p *pod) {
	p.dead = true
	if p.leader != nil {
		f.drop(p, p.leader)
	}
}

// notice has the controller learn what has become of pods.
func (f *fleet) notice() {
	for _, uid := range f.uids() {
		p := f.pods[uid]
		switch {
		case !p.dead && p.released && (p.want.Leaving != "" || p.left):
			f.end(p) // it was deleted
		case !p.dead && !p.want.LeaveBy.IsZero() && f.now.After(p.want.LeaveBy):
			f.end(p) // it was killed
		case p.dead && !p.want.Ended:
			p.want.Lost, p.want.Ended = cmp.Or(p.want.Lost, "it has ended"), true
		case p.dead && !f.matters(p):
			f.nameNoMore(uid)
		}
	}
}

// nameNoMore has the controller name a worker no more that has ended.
func (f *fleet) nameNoMore(uid string) {
	delete(f.pods, uid)
	f.over = append(f.over, uid)
}

// matters says whether a worker that has ended may have been in the world that there is. Until the newest round has
// made a step that may be the one before it. The controller names all who were there, or were to be there: operators
// that come later cannot know that they had not heard of it.
func (f *fleet) matters(p *pod) bool {
	r := f.record
	in := p.in().Round
	fresh := f.done[r.Round] <= r.FromStep
	return in > 0 && (in >= r.Round || in >= r.Parent && fresh) || f.written(p.uid) ||
		slices.Contains(f.ranked[r.MembersDigest], p.uid) || fresh && slices.Contains(f.ranked[f.digests[r.Parent]], p.uid)
}

// written says whether a record that names a worker is on its way: a pod that nobody looks for any more may be in the one that
// stands in a moment. (A controller keeps its job waiting for regroupTimeout then, and starts over.)
func (f *fleet) written(uid string) bool {
	names := func(w *Write) bool { return w != nil && slices.Contains(f.ranked[w.Next.MembersDigest], uid) }
	for _, l := range f.leaders {
		if names(l.writing) {
			return true
		}
	}
	return slices.ContainsFunc(f.late, func(w lateWrite) bool { return names(&w.write) })
}

// suspect has the controller take a worker for lost that may live.
func (f *fleet) suspect() {
	if p := f.pickPod(); p.want.Lost == "" {
		p.want.Lost = "its node does not answer"
	}
}

// standStill freezes a process, or lets it go on.
func (f *fleet) standStill() {
	p := f.pickPod()
	if p.process.still {
		p.wake()
		return
	}
	p.process.still = true
}

// cutOff takes a worker off the network: from the operators alone, or from its peers too. Or it is there again.
func (f *fleet) cutOff() {
	p := f.pickPod()
	if p.unheard {
		p.unheard, p.apart = false, false
		return
	}
	f.cut(p, rapid.Bool().Draw(f.draws, "apart"))
	if p.leader != nil && rapid.Bool().Draw(f.draws, "noticed") {
		f.drop(p, p.leader)
	}
}

func (f *fleet) cut(p *pod, apart bool) {
	p.unheard, p.apart = true, apart
	if apart {
		p.awayAt = f.now
	}
}

// part takes a worker off the network of its peers alone, who may need what it has. Or it is there again.
func (f *fleet) part() {
	p := f.pickPod()
	p.apart, p.awayAt = !p.apart, f.now
}

// reject has the network refuse whatever is to connect to a worker, as firewalls can: what is connected stays. Or it lets it again.
func (f *fleet) reject() {
	p := f.pickPod()
	p.rejected, p.awayAt, p.rejectedAt = !p.rejected, f.now, f.now
}

// wall has a worker lose its operator while its world trains on, and the network refuse who is to connect to it some time later.
func (f *fleet) wall() {
	p := f.pickPod()
	f.cut(p, false)
	if p.leader != nil {
		f.drop(p, p.leader)
	}
	f.goWell()
	if !p.rejected && !p.dead {
		p.rejected, p.awayAt, p.rejectedAt = true, f.now, f.now
	}
	f.goWell()
}

// freeze stops everything in a worker, whose sessions stay. Or it goes on.
func (f *fleet) freeze() {
	p := f.pickPod()
	p.frozen, p.awayAt = !p.frozen, f.now
}

// lie makes one worker a liar, and the one before it honest.
func (f *fleet) lie() {
	f.stopLying()
	f.liar, f.lies = f.pickPod().uid, rapid.Bool().Draw(f.draws, "refused")
}

// stopLying makes the liar honest. What it has said may count for a while.
func (f *fleet) stopLying() {
	if before := f.pods[f.liar]; before != nil {
		before.liedAt = f.now
	}
	f.liar = ""
}

// notReached says whether no agent can reach that of a worker.
func (f *fleet) notReached(p *pod) bool { return p.dead || p.left || p.frozen || p.apart }

// areHalves says whether two pods are in different halves.
func (f *fleet) areHalves(p, other *pod) bool {
	return f.halved && (p.want.Ordinal-other.want.Ordinal)%2 != 0
}

// reaches is what a worker says of the agent that it was asked about: of one that has ended, and whose node is there, that
// nobody is at its port.
func (f *fleet) reaches(p *pod, asked Probe) (reached, refused bool) {
	target := f.pods[strings.TrimPrefix(asked.Peer.Address, "10.0.0.")]
	switch {
	case p.uid == f.liar:
		return false, f.lies
	case target == nil || target.certificate != asked.Peer.Certificate || f.notReached(p) || f.areHalves(p, target):
		return false, false
	case target.rejected && !target.vanished && !target.apart:
		return false, true
	}
	return !f.notReached(target), f.hasEnded(target) && !target.vanished && !target.apart
}

// hasEnded says whether the agent of a worker has ended.
func (f *fleet) hasEnded(p *pod) bool { return p.dead || p.left }

// isParted says whether a rank of a round cannot be reached by the others: they make no step.
func (f *fleet) isParted(round uint64) bool {
	for _, p := range f.pods {
		if p.apart && !p.dead && p.process.round == round {
			return true
		}
	}
	return false
}

// peer is the name of one of those on whose word a worker was lost.
var peer = regexp.MustCompile(`p\d\d`)

// checkSilence checks that whoever was lost on the word of its peers could not be reached, or that each of these lies,
// or was itself out of reach when it was asked.
func (f *fleet) checkSilence(l *modelLeader) {
	for i := range l.machine.losses {
		loss := &l.machine.losses[i]
		p := f.pods[loss.UID]
		if p == nil || !loss.At.Equal(f.now) || l.judged[loss.UID].Equal(loss.At) {
			continue // what is heard later in that moment was not known
		}
		l.judged[loss.UID] = loss.At
		if strings.HasPrefix(loss.Message, "it holds the state") {
			f.mayBeUnreached(p, loss)
		}
		if strings.HasSuffix(loss.Message, "at its port") && !f.hasEnded(p) {
			f.mayBeRefused(p, loss)
			if left, ok := l.left[p.uid]; ok && left.heard && l.machine.furthest() >= left.step+2 {
				f.t.Fatalf("the world was at step %d when the session of %s had ended, is at step %d, and it is lost: %s",
					left.step, p.uid, l.machine.furthest(), loss.Message)
			}
		}
		if !strings.HasSuffix(loss.Message, "cannot reach it") || p.awayAt.After(f.now.Add(-provesFor)) {
			continue
		}
		for _, by := range f.witnesses(loss) {
			if !f.liedLately(by) && !f.notReached(by) && !by.awayAt.After(f.now.Add(-provesFor)) {
				f.t.Fatalf("%s could be reached since %s, by %s too, and is lost: %s", p.uid, f.now.Sub(p.awayAt), by.uid, loss.Message)
			}
		}
	}
}

// witnessesNamed are the names of those on whose word a worker was lost.
func witnessesNamed(loss *Loss) []string {
	_, said, _ := strings.Cut(loss.Message, ", and ")
	return peer.FindAllString(said, -1)
}

// witnesses are those of them that are still there.
func (f *fleet) witnesses(loss *Loss) (all []*pod) {
	for _, name := range witnessesNamed(loss) {
		if by := f.pods[name]; by != nil {
			all = append(all, by)
		}
	}
	return all
}

func (f *fleet) liedLately(p *pod) bool {
	return p.uid == f.liar || p.liedAt.After(f.now.Add(-provesFor))
}

// mayBeRefused checks that whoever was lost because nobody is at its port, and whose agent runs, was lost by nothing but lies
// or a network that refuses, and the word of two at least.
func (f *fleet) mayBeRefused(p *pod, loss *Loss) {
	by := f.witnesses(loss)
	refused := p.rejected || p.rejectedAt.After(f.now.Add(-provesFor))
	if len(by) < enoughWitnesses || slices.ContainsFunc(by, func(by *pod) bool { return !f.liedLately(by) && !refused }) {
		f.t.Fatalf("the agent of %s runs, and it is lost: %s", p.uid, loss.Message)
	}
}

// mayBeUnreached checks that whoever was lost because others could not get its state was lost by the word of two, one of whom at
// least has said the truth, unless both have lied.
func (f *fleet) mayBeUnreached(p *pod, loss *Loss) {
	if named := witnessesNamed(loss); len(named) < enoughWitnesses {
		f.t.Fatalf("%s is lost by the word of %v: %s", p.uid, named, loss.Message)
	}
	for _, one := range f.witnesses(loss) {
		if one.uid != f.liar && one.liedAt.IsZero() && p.awayAt.IsZero() && one.awayAt.IsZero() {
			f.t.Fatalf("%s could always be reached by %s: %s", p.uid, one.uid, loss.Message)
		}
	}
}

// checkCharges checks that no program is charged more often than it has failed.
func (f *fleet) checkCharges(l *modelLeader) {
	charged := map[string]int{}
	for i := range l.machine.losses {
		loss := &l.machine.losses[i]
		if loss.Program && (strings.Contains(loss.Message, "exited with code") || strings.Contains(loss.Message, "Error")) {
			charged[loss.UID]++
		}
	}
	for uid, n := range charged {
		if p := f.pods[uid]; p != nil && n > p.failures {
			f.t.Fatalf("leader %d charges %s with %d failures of %d: %v", l.id, uid, n, p.failures, l.machine.losses)
		}
	}
}

func (f *fleet) failProgram() {
	switch p := f.pickPod(); {
	case !p.trains() || p.process.still:
	case p.disk != nil:
		p.exits(1)
	default:
		p.fail(rapid.SampledFrom([]string{"ValueError: bad", "connection reset by peer"}).Draw(f.draws, "fault"))
	}
}

func (f *fleet) exitProgram() {
	if p := f.pickPod(); p.in().Round > 0 && rapid.IntRange(0, 3).Draw(f.draws, "exits") == 0 {
		p.exits(1)
	}
}

// alter has the memory of a worker change a snapshot that it holds.
func (f *fleet) alter() {
	if p := f.pickPod(); len(p.snapshots) > 0 {
		p.altered[p.snapshots[rapid.IntRange(0, len(p.snapshots)-1).Draw(f.draws, "altered")]] = true
	}
}

func (f *fleet) snapshot() {
	if !f.shares {
		if p := f.pickPod(); p.trains() && !p.process.still && !p.process.stepping && p.disk == nil {
			p.save(lifecycle.Staging{})
		}
		return
	}
	// Everybody writes after the same step, but for some who may not.
	for _, uid := range f.uids() {
		p := f.pods[uid]
		if p.trains() && !p.process.still && !p.process.stepping && rapid.IntRange(0, 7).Draw(f.draws, "writes") > 0 {
			if staging := p.stages(); staging.Of > 0 {
				p.save(staging)
			}
		}
	}
}
