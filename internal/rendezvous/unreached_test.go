package rendezvous

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
)

// Histories in which the operator hears everybody, and some of those who hold the newest state cannot be reached by all others.
func TestHoldersThatAreNotReached(t *testing.T) {
	for name, play := range map[string]func(*fleet) string{
		"the only holder, and an older snapshot is there":  olderServes,
		"who has made one step more than the others":       stepAhead,
		"the only holder of the only snapshot is enough":   goesOnAlone,
		"the only holder of the only snapshot, for long":   waitedFor,
		"who has it live, and a snapshot that was altered": waitedForItsLive,
		"one lies about the holder":                        oneLies,
		"one of two does not reach the other":              oneOfTwo,
		"one of two, and the world needs two":              anotherInItsPlace,
		"two on one node do not reach another one":         fromOneNode,
		"one says that it is where another one is":         inTheSamePlace,
		"the only holder ends meanwhile":                   holderEnds,
		"a newcomer reaches nobody":                        newcomerApart,
		"both halves of a world":                           halves,
		"two do not reach all who have the state":          fewDoNotReachMany,
		"who leaves has the state":                         leaverApart,
		"newcomers that are cut off, one has saved":        newcomersApart,
		"more newcomers that are cut off than workers":     manyNewcomersApart,
		"the same, and another operator leads by then":     manyNewcomersAdopted,
		"and the world that it has found has broken":       manyNewcomersTwice,
		"newcomers that are cut off, and too few without":  newcomersNeeded,
		"newcomers and a worker do not reach the other":    newcomersAgree,
		"two do not get what others have got":              othersHaveGot,
		"newcomers that can be dialled, and get nothing":   newcomersStarved,
		"who is lost for that stays lost":                  starvedStayLost,
		"a holder that answers, and gives nothing":         answersInVain,
		"one says that it has the state of the beginning":  func(f *fleet) string { return statePretended(f, 0) },
		"one says that it has a state, and cannot save it": func(f *fleet) string { return statePretended(f, 3) },
	} {
		t.Run(name, func(t *testing.T) {
			f := emptyFleet(t)
			f.minimum, f.target, f.hang = 1, 3, 10*time.Minute
			if wrong := play(f); wrong != "" {
				t.Error(wrong)
			}
		})
	}
}

// lasting has so much time pass in which nothing else fails. What the controller knows of losses it tells.
func (f *fleet) lasting(l *modelLeader, d time.Duration) {
	for began := f.now; f.now.Sub(began) < d; {
		for i := range l.machine.losses {
			if p := f.pods[l.machine.losses[i].UID]; p != nil && p.want.Lost == "" && !l.machine.Observe(f.now).Members[p.uid].Stays {
				p.want.Lost = l.machine.losses[i].Message
				_ = f.handle(l, GangExpected{f.gang()})
			}
		}
		f.turn(l)
	}
}

// vague has nobody say that its state is clean: a snapshot has to serve.
func (f *fleet) vague() {
	for _, p := range f.pods {
		p.vague = true
	}
}

// breaks has the world leave what it is at: the connection of a program has broken.
func (f *fleet) breaks(uid string) { f.pods[uid].fail("connection reset by peer") }

// lossOf says how a worker was lost; empty when it was not.
func (f *fleet) lossOf(l *modelLeader, uid string) string {
	for i := range l.machine.losses {
		if loss := &l.machine.losses[i]; loss.UID == uid {
			return loss.Message
		}
	}
	return ""
}

// goesOn says what is wrong when the world does not train with so many workers.
func (f *fleet) goesOn(l *modelLeader, workers int32) string {
	w := l.machine.world
	if w == nil || w.record.Workers != workers || f.done[w.record.Round] <= w.record.FromStep {
		return fmt.Sprintf("the job does not get on with %d workers: the leader is %s, of %+v", workers, l.machine.State(), f.record)
	}
	return ""
}

// soleHolder has a world whose newest snapshot only p02 has. older says whether the others hold one before it.
func (f *fleet) soleHolder(older bool) (l *modelLeader, newest uint64) {
	l = f.training(3)
	f.vague()
	if older {
		f.pods["p00"].save(lifecycle.Staging{})
		f.pods["p01"].save(lifecycle.Staging{})
		f.turns(l, 10)
	}
	f.pods["p02"].save(lifecycle.Staging{})
	newest = uint64(len(f.pods["p02"].process.state))
	f.turns(l, 10)
	return l, newest
}

// olderServes: two peers on other nodes do not reach it. It is lost, by their word, and the world goes on without it from the
// snapshot before.
func olderServes(f *fleet) string {
	l, newest := f.soleHolder(true)
	f.pods["p02"].apart = true
	f.breaks("p00")
	f.lasting(l, 90*time.Second)
	why := f.lossOf(l, "p02")
	switch {
	case !strings.Contains(why, "p00") || !strings.Contains(why, "p01"):
		return fmt.Sprintf("after %d rounds it is lost by the word of others: %q", f.record.Round-1, why)
	case !l.machine.losses[0].Unreached:
		return fmt.Sprintf("nothing says that it was not reached: %+v", l.machine.losses)
	case f.record.Round > 3 || f.record.FromStep >= newest:
		return fmt.Sprintf("a snapshot of step %d cannot be had, and there is %+v", newest, f.record)
	}
	return f.goesOn(l, 2)
}

// stepAhead: nobody but p02 has ended its last step, and its state would be that of all. The others go on from theirs, which they still
// have.
func stepAhead(f *fleet) string {
	l := f.training(3)
	f.pods["p00"].save(lifecycle.Staging{})
	f.pods["p01"].save(lifecycle.Staging{})
	f.turns(l, 10)
	ahead := f.pods["p02"]
	for n := 0; ahead.process.done <= f.pods["p00"].process.done || ahead.process.done <= f.pods["p01"].process.done; n++ {
		f.move(f.pods[f.uids()[n%3]])
	}
	from := f.pods["p00"].process.done
	ahead.apart = true
	f.breaks("p00")
	f.lasting(l, 90*time.Second)
	if f.lossOf(l, "p02") == "" || f.record.FromStep != from {
		return fmt.Sprintf("the world goes on after step %d, and not %d; losses %+v", f.record.FromStep, from, l.machine.losses)
	}
	return f.goesOn(l, 2)
}

// goesOnAlone: a world may have one worker, so who has the only state goes on with it. The others are a part of it again once they
// are reached.
func goesOnAlone(f *fleet) string {
	l, newest := f.soleHolder(false)
	f.pods["p02"].apart = true
	f.breaks("p00")
	f.lasting(l, 90*time.Second)
	if wrong := f.goesOn(l, 1); wrong != "" || f.record.FromStep != newest || len(l.machine.losses) > 0 {
		return fmt.Sprintf("%s; it goes on after step %d, and not %d; losses %+v", wrong, f.record.FromStep, newest, l.machine.losses)
	}
	f.pods["p02"].apart = false
	f.lasting(l, time.Minute)
	return f.goesOn(l, 3)
}

// waitedFor: there is nothing else to go on from, so the others wait for it, and make no world after the other. It is there
// again in the end.
func waitedFor(f *fleet) string {
	f.minimum = 2
	l, newest := f.soleHolder(false)
	f.pods["p02"].apart = true
	f.breaks("p00")
	f.lasting(l, 5*time.Minute)
	if phase := l.machine.Observe(f.now).Phase; f.record.Round > 2 || phase != PhaseRegrouping || l.machine.fatal != "" || len(l.machine.losses) > 0 {
		return fmt.Sprintf("the leader is %s (%s) in round %d; losses %+v", phase, l.machine.fatal, f.record.Round, l.machine.losses)
	}
	f.pods["p02"].apart = false
	f.lasting(l, time.Minute)
	if f.record.FromStep != newest {
		return fmt.Sprintf("the world goes on after step %d, and the snapshot is of step %d", f.record.FromStep, newest)
	}
	return f.goesOn(l, 3)
}

// waitedForItsLive: it has no snapshot any more, and could save what it has live.
func waitedForItsLive(f *fleet) string {
	f.minimum = 2
	l := f.training(3)
	p := f.pods["p02"]
	f.pods["p00"].vague, f.pods["p01"].vague, p.apart = true, true, true
	f.breaks("p00")
	f.lasting(l, time.Minute)
	if mem := l.machine.members["p02"]; !mem.isAside() {
		return fmt.Sprintf("it is not set aside: %s, %+v", l.machine.State(), f.record)
	}
	has := p.process.made()
	p.snapshots = nil
	f.lasting(l, 5*time.Minute)
	if phase := l.machine.Observe(f.now).Phase; f.record.Round > 2 || phase != PhaseRegrouping || l.machine.fatal != "" || len(l.machine.losses) > 0 {
		return fmt.Sprintf("the leader is %s (%s) in round %d; losses %+v", phase, l.machine.fatal, f.record.Round, l.machine.losses)
	}
	p.apart = false
	f.lasting(l, time.Minute)
	if has == 0 || f.record.FromStep != has {
		return fmt.Sprintf("the world goes on after step %d, and p02 has that after step %d", f.record.FromStep, has)
	}
	return f.goesOn(l, 3)
}

// oneLies: it says that it reaches nobody who holds the state. Nobody else is lost by that, nor any step. Peers reach the liar, so
// it is tried once more.
func oneLies(f *fleet) string {
	l, newest := f.soleHolder(true)
	f.liar = "p00"
	f.breaks("p00")
	f.lasting(l, 90*time.Second)
	others := slices.DeleteFunc(slices.Clone(l.machine.losses), func(loss Loss) bool { return loss.UID == f.liar })
	if len(others) > 0 || f.record.FromStep < newest || f.record.Round > 5 {
		return fmt.Sprintf("one lies, and %+v are lost; the snapshot is of step %d, and %+v", l.machine.losses, newest, f.record)
	}
	return f.goesOn(l, 2)
}

// oneOfTwo: nobody knows with which of the two it lies. Who has the state goes on, and the other one is waited for.
func oneOfTwo(f *fleet) string {
	f.target = 2
	l := f.training(2)
	f.vague()
	f.pods["p01"].save(lifecycle.Staging{})
	newest := uint64(len(f.pods["p01"].process.state))
	f.turns(l, 10)
	f.pods["p00"].apart = true
	f.breaks("p00")
	f.lasting(l, 90*time.Second)
	if f.record.FromStep != newest || f.lossOf(l, "p01") != "" {
		return fmt.Sprintf("the holder is lost: %+v, and %+v", l.machine.losses, f.record)
	}
	if wrong := f.goesOn(l, 1); wrong != "" {
		return wrong
	}
	f.pods["p00"].apart = false
	f.lasting(l, time.Minute)
	return f.goesOn(l, 2)
}

// anotherInItsPlace: the two stand until somebody else is there, and nothing is lost.
func anotherInItsPlace(f *fleet) string {
	f.minimum, f.target = 2, 2
	l := f.training(2)
	f.vague()
	f.pods["p01"].save(lifecycle.Staging{})
	newest := uint64(len(f.pods["p01"].process.state))
	f.turns(l, 10)
	f.pods["p00"].apart = true
	f.breaks("p00")
	f.lasting(l, 4*time.Minute)
	if f.lossOf(l, "p00") == "" || f.lossOf(l, "p01") != "" || f.record.Round > 2 {
		return fmt.Sprintf("who has no state is not the one that is lost: %+v, and %+v", l.machine.losses, f.record)
	}
	f.makePod()
	_ = f.handle(l, GangExpected{f.gang()})
	f.lasting(l, time.Minute)
	if f.record.FromStep != newest {
		return fmt.Sprintf("the snapshot is of step %d, and %+v", newest, f.record)
	}
	return f.goesOn(l, 2)
}

// holderEnds: that explains why it could not be reached, and nobody is waited for who has nothing.
func holderEnds(f *fleet) string {
	f.target = 2
	l := f.training(2)
	f.vague()
	f.pods["p01"].save(lifecycle.Staging{})
	f.turns(l, 10)
	f.pods["p01"].apart = true
	f.breaks("p00")
	f.lasting(l, 25*time.Second)
	f.lose(l, "p01")
	f.lasting(l, time.Minute)
	if l.machine.fatal == "" {
		return fmt.Sprintf("the snapshot is gone, and the leader is %s: %s", l.machine.State(), l.machine.Underway().Stage)
	}
	return ""
}

// fromOneNode: it may be their own node that is cut off, and others are on further ones. The holder is not lost by that.
func fromOneNode(f *fleet) string {
	f.target = 4
	l := f.training(4) // p00 and p03 are on one node
	f.vague()
	f.pods["p02"].save(lifecycle.Staging{})
	newest := uint64(len(f.pods["p02"].process.state))
	f.turns(l, 10)
	f.pods["p00"].apart, f.pods["p03"].apart = true, true
	f.breaks("p00")
	f.lasting(l, 90*time.Second)
	if len(l.machine.losses) > 0 || f.record.FromStep != newest {
		return fmt.Sprintf("lost are %+v; the snapshot is of step %d, and %+v", l.machine.losses, newest, f.record)
	}
	return f.goesOn(l, 2)
}

// inTheSamePlace: it holds the state too, and shows the certificate of another holder there, so that nobody gets that from it. What is
// said of the one is not taken for the other.
func inTheSamePlace(f *fleet) string {
	l := f.training(3)
	f.vague()
	f.pods["p02"].save(lifecycle.Staging{})
	f.turns(l, 10)
	m := l.machine
	m.members["p01"].endpoint.Address, m.members["p01"].serves = m.members["p02"].endpoint.Address, m.members["p02"].serves
	m.world.holders = []holding{{holder: m.members["p02"].holder()}}
	m.members["p00"].report.Unreached = []Unreached{{m.members["p02"].endpoint.Address, m.members["p02"].serves, "another certificate"}}
	if said := m.hearUnreached(); len(said) > 0 {
		return fmt.Sprintf("p00 says that of one of them: %v", said)
	}
	return ""
}

// newcomerApart: for ten minutes. The others do not stand still for it all the time, and others can take its place.
func newcomerApart(f *fleet) string {
	l := f.training(2)
	f.parkedBefore(l)
	f.pods["p02"].apart = true
	f.lasting(l, 10*time.Minute)
	if f.lossOf(l, "p02") == "" || f.record.Round > 4 {
		return fmt.Sprintf("there is round %d; losses %+v", f.record.Round, l.machine.losses)
	}
	return f.goesOn(l, 2)
}

// halves: of four workers two reach each other, and not the other two. Each has something that the others need. One of the halves
// goes on.
func halves(f *fleet) string {
	f.target, f.shares = 4, true
	l := f.training(4)
	f.vague()
	for _, uid := range f.uids() {
		f.pods[uid].save(f.pods[uid].stages())
	}
	f.turns(l, 1)
	f.halved = true
	f.breaks("p00")
	f.lasting(l, 3*time.Minute)
	if lost := len(l.machine.losses); lost != 2 || l.machine.fatal != "" {
		return fmt.Sprintf("%d of 4 are lost: %+v (%s)", lost, l.machine.losses, l.machine.fatal)
	}
	return f.goesOn(l, 2)
}

// fewDoNotReachMany: of five workers two are cut off from the other three, who hold the state. Those who are more go on with it,
// though the two have an older one.
func fewDoNotReachMany(f *fleet) string {
	f.target = 5
	l := f.training(5)
	f.vague()
	cut := []string{"p01", "p03"}
	for _, uid := range cut {
		f.pods[uid].save(lifecycle.Staging{})
	}
	f.turns(l, 10)
	var newest uint64
	for _, uid := range []string{"p00", "p02", "p04"} {
		f.pods[uid].save(lifecycle.Staging{})
		newest = uint64(len(f.pods[uid].process.state))
	}
	f.turns(l, 2)
	f.halved = true
	f.breaks("p00")
	f.lasting(l, 90*time.Second)
	if len(l.machine.losses) > 0 || f.record.FromStep != newest {
		return fmt.Sprintf("lost are %+v; the snapshot is of step %d, and %+v", l.machine.losses, newest, f.record)
	}
	return f.goesOn(l, 3)
}

// leaverApart: it hands its state over to those who go on, who do not reach it.
func leaverApart(f *fleet) string {
	l, newest := f.soleHolder(true)
	f.target = 2
	f.pods["p02"].apart = true
	f.pods["p02"].want.Leaving = ReasonScaledDown
	_ = f.handle(l, GangExpected{f.gang()})
	f.breaks("p00")
	f.lasting(l, 90*time.Second)
	if f.record.FromStep >= newest || f.record.Round > 4 {
		return fmt.Sprintf("the snapshot of step %d cannot be had, and there is %+v", newest, f.record)
	}
	return f.goesOn(l, 2)
}

// grows has the world of a leader be joined by so many more.
func (f *fleet) grows(l *modelLeader, by int) (newcomers []string) {
	f.target += int32(by)
	for range by {
		newcomers = append(newcomers, fmt.Sprintf("p%02d", f.made))
		f.makePod()
	}
	_ = f.handle(l, GangExpected{f.gang()})
	return newcomers
}

// onlyLost says what is wrong when others than these were lost.
func (f *fleet) onlyLost(l *modelLeader, uids ...string) string {
	for i := range l.machine.losses {
		if loss := &l.machine.losses[i]; !slices.Contains(uids, loss.UID) {
			return fmt.Sprintf("%s is lost in round %d: %s", loss.UID, loss.Round, loss.Message)
		}
	}
	return ""
}

// newcomersApart: the state of a barrier was saved by one, and all others have it live. Two newcomers on a broken network do not reach
// the one, and nobody reaches them: the others are more.
func newcomersApart(f *fleet) string {
	f.target = 5
	l := f.training(5)
	newcomers := f.grows(l, 2)
	for _, uid := range newcomers {
		f.pods[uid].apart = true
	}
	f.lasting(l, 10*time.Minute)
	if wrong := f.onlyLost(l, newcomers...); wrong != "" || f.lossOf(l, newcomers[0]) == "" || f.lossOf(l, newcomers[1]) == "" {
		return fmt.Sprintf("%s; round %d; losses %+v", wrong, f.record.Round, l.machine.losses)
	}
	return f.goesOn(l, 5)
}

// manyNewcomersApart: a world of two, whom four cannot reach. These have been in no world that made a step; the two have just trained
// together, and are believed.
func manyNewcomersApart(f *fleet) string {
	f.target = 2
	l := f.training(2)
	newcomers := f.grows(l, 4)
	for _, uid := range newcomers {
		f.pods[uid].apart = true
	}
	f.lasting(l, 10*time.Minute)
	return f.trainsOnWithout(l, newcomers)
}

// newcomersNeeded: of four that it takes two are lost, and the two that come do not reach who has the newest snapshot, nor anybody else.
// Those who have trained stay with what they have, and go on from there with others.
func newcomersNeeded(f *fleet) string {
	f.minimum, f.target = 4, 4
	l := f.training(4)
	f.vague()
	f.pods["p00"].save(lifecycle.Staging{})
	f.pods["p01"].save(lifecycle.Staging{})
	f.turns(l, 10)
	f.pods["p00"].save(lifecycle.Staging{})
	newest := uint64(len(f.pods["p00"].process.state))
	f.turns(l, 2)
	f.lose(l, "p02")
	f.lose(l, "p03")
	newcomers := f.grows(l, 2)
	f.target = 4
	for _, uid := range newcomers {
		f.pods[uid].apart = true
	}
	f.lasting(l, 4*time.Minute)
	if wrong := f.onlyLost(l, append(newcomers, "p02", "p03")...); wrong != "" || f.lossOf(l, newcomers[0]) == "" || l.machine.fatal != "" {
		return fmt.Sprintf("%s; the leader is %s (%s) in round %d; losses %+v", wrong, l.machine.State(), l.machine.fatal, f.record.Round, l.machine.losses)
	}
	f.grows(l, 2)
	f.target = 4
	f.lasting(l, time.Minute)
	if f.record.FromStep != newest {
		return fmt.Sprintf("the snapshot is of step %d, and %+v", newest, f.record)
	}
	return f.goesOn(l, 4)
}

// newcomersAgree: of a world of two one is cut off, who has the newest snapshot. The other one and four newcomers do not reach it; these
// alone would not count, and of two who have trained each says as much as the other.
func newcomersAgree(f *fleet) string {
	f.target = 2
	l := f.training(2)
	f.vague()
	f.pods["p00"].save(lifecycle.Staging{})
	f.pods["p01"].save(lifecycle.Staging{})
	f.turns(l, 10)
	f.pods["p01"].save(lifecycle.Staging{})
	f.turns(l, 2)
	f.pods["p01"].apart = true
	f.grows(l, 4)
	f.turns(l, 1)
	f.breaks("p00")
	f.lasting(l, 5*time.Minute)
	if wrong := f.onlyLost(l, "p01"); wrong != "" || f.lossOf(l, "p01") == "" {
		return fmt.Sprintf("%s; round %d; losses %+v", wrong, f.record.Round, l.machine.losses)
	}
	for round, in := range f.ranked {
		if len(in) < 2 {
			return fmt.Sprintf("a world was made of %v alone (%s)", in, round)
		}
	}
	return f.goesOn(l, 5)
}

// trainsOnWithout says what is wrong when newcomers have cost a world of two one of these.
func (f *fleet) trainsOnWithout(l *modelLeader, newcomers []string) string {
	for _, in := range f.ranked {
		if !slices.Contains(in, "p00") || !slices.Contains(in, "p01") {
			return fmt.Sprintf("a world was made of %v alone", in)
		}
	}
	if wrong := f.onlyLost(l, newcomers...); wrong != "" || f.record.Round > 6 {
		return fmt.Sprintf("%s; round %d", wrong, f.record.Round)
	}
	return f.goesOn(l, 2)
}

// manyNewcomersAdopted: another operator finds the world that the four are to be in, and has not seen who has trained. Agents say who
// has the state that it begins with.
func manyNewcomersAdopted(f *fleet) string {
	l, newcomers, wrong := f.adoptsNewcomers()
	if wrong != "" {
		return wrong
	}
	f.lasting(l, 10*time.Minute)
	return f.trainsOnWithout(l, newcomers)
}

// manyNewcomersTwice: that world breaks for another reason, and nobody has trained in the next one yet.
func manyNewcomersTwice(f *fleet) string {
	l, newcomers, wrong := f.adoptsNewcomers()
	if wrong != "" {
		return wrong
	}
	f.turns(l, 4)
	f.breaks("p00")
	f.lasting(l, 10*time.Minute)
	return f.trainsOnWithout(l, newcomers)
}

// adoptsNewcomers has a world of two grow by four who are cut off, and another operator lead it by then.
func (f *fleet) adoptsNewcomers() (l *modelLeader, newcomers []string, wrong string) {
	f.target = 2
	l = f.training(2)
	newcomers = f.grows(l, 4)
	for _, uid := range newcomers {
		f.pods[uid].apart = true
	}
	for n := 0; f.record.Round == 1; n++ {
		if f.turn(l); n == 2000 {
			return nil, nil, "the world does not grow"
		}
	}
	f.turns(l, 10)
	f.kill(l)
	f.newLeader()
	return f.leaders[f.born], newcomers, ""
}

// othersHaveGot: one holds the snapshot that all go back to. Two do not reach it, and two have it by then.
func othersHaveGot(f *fleet) string {
	f.target = 5
	l := f.training(5)
	f.vague()
	f.pods["p04"].save(lifecycle.Staging{})
	newest := uint64(len(f.pods["p04"].process.state))
	f.turns(l, 10)
	f.pods["p00"].apart, f.pods["p02"].apart = true, true
	f.breaks("p01")
	f.lasting(l, 90*time.Second)
	if wrong := f.onlyLost(l); wrong != "" || f.record.FromStep != newest {
		return fmt.Sprintf("%s; the snapshot is of step %d, and %+v", wrong, newest, f.record)
	}
	return f.goesOn(l, 3)
}

// newcomersStarved: peers reach them, and they get no state from anybody. The others do not stand still for them again and again.
func newcomersStarved(f *fleet) string {
	l := f.training(3)
	newcomers := f.grows(l, 2)
	for _, uid := range newcomers {
		f.pods[uid].starved = true
	}
	f.lasting(l, 10*time.Minute)
	if wrong := f.onlyLost(l, newcomers...); wrong != "" || len(l.machine.losses) != 2 || f.record.Round > 6 {
		return fmt.Sprintf("%s; round %d; losses %+v", wrong, f.record.Round, l.machine.losses)
	}
	return f.goesOn(l, 3)
}

// starvedStayLost: peers go on to reach them, and the controller has not heard of the loss yet.
func starvedStayLost(f *fleet) string {
	l := f.training(3)
	newcomers := f.grows(l, 2)
	for _, uid := range newcomers {
		f.pods[uid].starved = true
	}
	for n := 0; len(l.machine.losses) < 2; n++ {
		if f.turn(l); n == 2000 {
			return fmt.Sprintf("round %d; losses %+v", f.record.Round, l.machine.losses)
		}
	}
	for range 300 {
		for _, uid := range newcomers {
			if l.machine.Observe(f.now).Members[uid].Stays || l.machine.isStandby(uid, l.machine.members[uid]) {
				return uid + " is lost, and is to be in a world again"
			}
		}
		f.turn(l)
	}
	if len(l.machine.losses) != 2 {
		return fmt.Sprintf("two are lost, and told are %+v", l.machine.losses)
	}
	return f.goesOn(l, 3)
}

// answersInVain: peers connect to who has the only state, and get nothing. They try less and less often, so that the controller can
// end the attempt.
func answersInVain(f *fleet) string {
	f.minimum = 2
	l, _ := f.soleHolder(false)
	f.pods["p00"].starved, f.pods["p01"].starved = true, true
	f.breaks("p00")
	f.lasting(l, 20*time.Minute)
	if phase := l.machine.Observe(f.now).Phase; f.record.Round > 8 || phase != PhaseRegrouping || len(l.machine.losses) > 0 {
		return fmt.Sprintf("the leader is %s in round %d; losses %+v", phase, f.record.Round, l.machine.losses)
	}
	return ""
}

// statePretended: one says that it has left the world with a state that it has not. The holder of the only snapshot is waited for.
func statePretended(f *fleet, step uint64) string {
	f.minimum = 2
	l, newest := f.soleHolder(false)
	f.pods["p02"].apart, f.pods["p00"].pretends = true, &step
	f.breaks("p01")
	f.lasting(l, 5*time.Minute)
	if phase := l.machine.Observe(f.now).Phase; phase != PhaseRegrouping || l.machine.fatal != "" || len(l.machine.losses) > 0 {
		return fmt.Sprintf("the leader is %s (%s) in round %d; losses %+v", phase, l.machine.fatal, f.record.Round, l.machine.losses)
	}
	f.pods["p02"].apart = false
	f.lasting(l, time.Minute)
	if f.record.FromStep != newest {
		return fmt.Sprintf("the world goes on after step %d, and the snapshot is of step %d", f.record.FromStep, newest)
	}
	return f.goesOn(l, 3)
}

// A holder that is in no world is waited for as well, as long as it has not ended.
func TestAHolderInNoWorldIsWaitedFor(t *testing.T) {
	for name, leave := range map[string]func(f *fleet, l *modelLeader, p *pod){
		"its program has failed": func(_ *fleet, _ *modelLeader, p *pod) { p.exits(1) },
		"it leaves": func(f *fleet, l *modelLeader, p *pod) {
			p.want.Leaving = ReasonScaledDown
			_ = f.handle(l, GangExpected{f.gang()})
			f.breaks("p00")
		},
	} {
		for _, heard := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, and it is heard %t", name, heard), func(t *testing.T) {
				f := emptyFleet(t)
				f.minimum, f.target, f.hang = 2, 3, 10*time.Minute
				l, newest := f.soleHolder(false)
				f.target = 2
				p := f.pods["p02"]
				p.apart = true
				_ = f.handle(l, GangExpected{f.gang()})
				leave(f, l, p)
				f.until(l, "the others have entered the next world", func() bool { return l.machine.world.record.Round == 2 && l.machine.world.formed() })
				if !heard {
					f.cut(p, true)
					f.drop(p, p.leader)
				}
				f.lasting(l, 40*time.Second)
				if why := l.machine.fatal; why != "" {
					t.Fatalf("it is given up: %s", why)
				}
				p.apart, p.unheard = false, false
				f.lasting(l, time.Minute)
				if f.record.FromStep != newest {
					t.Errorf("the world goes on after step %d, and p02 had that after step %d: %s", f.record.FromStep, newest, l.machine.State())
				}
			})
		}
	}
}

// What is not reached, and is live alone, is later than what the storage has: it is waited for.
func TestWhatIsLiveIsWaitedForBeforeTheStorage(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target, f.hang = 2, 3, 10*time.Minute
	f.storage, f.shelf = &Storage{Interval: time.Hour, Keep: 3, Own: true}, &shelf{}
	l := f.training(3)
	f.turns(l, 6)
	p := f.pods["p02"]
	c := checkpointed{"job/1-2", Snapshot{Round: 1, Step: 2, Bytes: 1, Hash: [32]byte{2}}, make(history, 2), nil}
	copy(c.state, p.process.state)
	f.shelf.kept = append(f.shelf.kept, c)
	f.pods["p00"].durable = Durable{c.snapshot, c.path}
	f.pods["p00"].vague, f.pods["p01"].vague, p.apart = true, true, true
	f.breaks("p00")
	f.lasting(l, 45*time.Second)
	if !l.machine.members["p02"].isAside() {
		t.Fatalf("it is not set aside: %s, %+v", l.machine.State(), f.record)
	}
	has := p.process.made()
	p.snapshots = nil // it was altered
	f.lasting(l, 10*time.Second)
	p.apart = false
	f.lasting(l, time.Minute)
	if f.record.FromStep != has {
		t.Errorf("the world goes on after step %d, and p02 had that after step %d live: %s", f.record.FromStep, has, l.machine.State())
	}
}

// Of thousands it is not said of each why it was set aside: all members are told.
func TestThousandsThatAreSetAsideAreCounted(t *testing.T) {
	for _, began := range []recovery{{unknown: true}, {why: "p00 leaves", wished: true, unknown: true}} {
		m := &Machine{broken: &began}
		for i := range MaxWorkers {
			m.explainAside("p%d is left out until its peers reach it: %s", i, strings.Repeat("i/o timeout ", 20))
		}
		why := m.broken.why
		if len(why) > 2<<10 || !strings.Contains(why, "p0 is left out") || !strings.HasSuffix(why, "; and 9997 more are left out") {
			t.Errorf("%d bytes are said of them: %.2000s", len(why), why)
		}
	}
}

// What was said in worlds that made no step counts no more once one has made one, of whoever is in it or not. Who is left out stays so.
func TestWordsEndWithTheirWorlds(t *testing.T) {
	by := []witness{{uid: "p03"}}
	m := &Machine{
		world: &world{ranks: &rankTable{uids: []string{"p00", "gone"}}},
		members: map[string]*member{
			"p00": {aside: aside{times: 1, by: by}}, "p01": {aside: aside{times: 1, by: by}},
			"p02": {aside: aside{since: time.Unix(1, 0), times: 1, by: by}},
		},
	}
	m.allReached()
	for uid, want := range map[string]aside{"p00": {}, "p01": {times: 1}, "p02": {since: time.Unix(1, 0), times: 1, by: by}} {
		if got := m.members[uid].aside; !reflect.DeepEqual(got, want) {
			t.Errorf("of %s it is known %+v, want %+v", uid, got, want)
		}
	}
}

// However many are set aside: peers are asked about one that is silent, and in turn about each of these.
func TestManyThatAreSetAsideLeaveRoomForOthers(t *testing.T) {
	f := emptyFleet(t)
	f.target, f.hang = 4, 10*time.Minute
	l := f.training(4)
	waiting := map[string]bool{}
	for range 40 {
		waiting[fmt.Sprintf("p%02d", f.made)] = true
		f.makePod()
	}
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 2)
	for uid := range waiting {
		f.pods[uid].apart = true
		l.machine.setAside(f.now, l.machine.members[uid], "it is apart")
	}
	f.turns(l, 2)
	f.pods["p03"].frozen = true
	asked := 0
	for range 150 {
		f.turn(l)
		for uid := range waiting {
			if len(l.machine.members[uid].probe.peers) > 0 {
				delete(waiting, uid)
			}
		}
		asked = max(asked, len(l.machine.members["p03"].probe.peers))
	}
	if asked < enoughWitnesses || len(waiting) > 0 || f.lossOf(l, "p03") == "" {
		t.Errorf("%d are asked about one that is silent, lost are %+v, and nobody about %d that are set aside", asked, l.machine.losses, len(waiting))
	}
}
