package rendezvous

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// breaksWithout has the session of the last of so many workers end, and the program of the first fail for it, and lets
// everybody else speak, while no time passes.
func breaksWithout(f *fleet, pods int, last func(*pod)) *modelLeader {
	f.target = int32(pods)
	l := f.training(pods)
	p := f.pods[f.uids()[pods-1]]
	last(p)
	f.drop(p, l)
	f.pods["p00"].fail("connection reset by peer")
	f.talk(l, p)
	return l
}

// talk has all but one say how they are, and hear what the leader says to that, until nobody says anything new.
func (f *fleet) talk(l *modelLeader, but *pod) {
	for range 3 {
		for _, uid := range f.uids() {
			if p := f.pods[uid]; p != but && p.leader == l {
				f.tellState(p)
			}
		}
		for _, uid := range f.uids() {
			for p := f.pods[uid]; p != but && len(p.queue) > 0; {
				f.deliverTo(p)
			}
		}
	}
}

// lostAfter says after how long the first worker was lost, and how.
func lostAfter(f *fleet, l *modelLeader) (time.Duration, string) {
	for waited := time.Duration(0); waited < time.Second; waited += 50 * time.Millisecond {
		for i := range l.machine.losses {
			return waited, l.machine.losses[i].Message
		}
		f.pass(50 * time.Millisecond)
	}
	return time.Second, ""
}

func expectLoss(t *testing.T, f *fleet, l *modelLeader, want time.Duration, why string) {
	t.Helper()
	if after, how := lostAfter(f, l); after != want || !strings.Contains(how, why) {
		t.Errorf("lost after %s: %q", after, how)
	}
}

// The agent has ended, its node is there: two peers find nobody at its port, and nobody waits, not even for a peer's fault.
func TestWhoHasEndedIsLostAtOnce(t *testing.T) {
	f := emptyFleet(t)
	l := breaksWithout(f, 3, func(p *pod) { p.dead = true })
	expectLoss(t, f, l, 0, "p00 and p01 find nobody at its port")

	f = emptyFleet(t)
	f.target = 3
	l = f.training(3)
	f.end(f.pods["p02"])
	f.talk(l, f.pods["p02"])
	expectLoss(t, f, l, 0, "p00 and p01 find nobody at its port")
}

// The agent lives. Whatever has become of its session, and whoever lies, it has as long as ever to come again.
func TestWhoLivesHasTimeToComeAgain(t *testing.T) {
	for name, c := range map[string]struct {
		pods int
		last func(*fleet, *pod)
	}{
		"its link has broken":              {3, func(*fleet, *pod) {}},
		"one of two peers lies":            {3, func(f *fleet, _ *pod) { f.liar, f.lies = "p00", true }},
		"the only peer lies":               {2, func(f *fleet, _ *pod) { f.liar, f.lies = "p00", true }},
		"one of many peers lies":           {4, func(f *fleet, _ *pod) { f.liar, f.lies = "p00", true }},
		"its node is slow":                 {3, func(_ *fleet, p *pod) { p.frozen = true }},
		"nobody reaches its node":          {3, func(f *fleet, p *pod) { f.cut(p, true) }},
		"only its link is cut":             {3, func(f *fleet, p *pod) { f.cut(p, false) }},
		"its peers know no probes":         {3, func(f *fleet, p *pod) { f.pods["p00"].reach, f.pods["p01"].reach = nil, nil }},
		"its peers cannot tell any longer": {3, func(f *fleet, p *pod) { p.dead, p.vanished = true, true }},
	} {
		t.Run(name, func(t *testing.T) {
			f := emptyFleet(t)
			l := breaksWithout(f, c.pods, func(p *pod) { c.last(f, p) })
			expectLoss(t, f, l, brokenSession+50*time.Millisecond, "its session ended, and a peer reports a fault")
		})
	}
}

// askedOneByOne has those who are asked about a worker say something of it, one after another, and counts the losses after each.
func askedOneByOne(f *fleet, l *modelLeader, target string, said ...Probed) (lostAfter []int) {
	probe := &l.machine.members[target].probe
	for i, uid := range slices.Clone(probe.peers) {
		if i == len(said) {
			break
		}
		r := f.pods[uid].report()
		said[i].Number = probe.number
		r.Probed = []Probed{said[i]}
		f.told(f.pods[uid], f.handle(l, AgentReported{uid, r}))
		lostAfter = append(lostAfter, len(l.machine.losses))
	}
	return lostAfter
}

// Two were refused, and the third has yet to say what it has found: it may reach the member. It has a second for that.
func TestAllWhoWereAskedAreHeard(t *testing.T) {
	for name, c := range map[string]struct {
		said []Probed
		want []int
		then int
	}{
		"one reaches it":    {[]Probed{{Refused: true}, {Refused: true}, {Reached: true}}, []int{0, 0, 0}, 0},
		"all are refused":   {[]Probed{{Refused: true}, {Refused: true}, {Refused: true}}, []int{0, 0, 1}, 1},
		"one cannot tell":   {[]Probed{{Refused: true}, {Refused: true}, {}}, []int{0, 0, 1}, 1},
		"one says nothing":  {[]Probed{{Refused: true}, {Refused: true}}, []int{0, 0}, 1},
		"two say nothing":   {[]Probed{{Refused: true}}, []int{0}, 0},
		"one is refused":    {[]Probed{{Refused: true}, {}, {}}, []int{0, 0, 0}, 0},
		"it is reached now": {[]Probed{{Reached: true}, {Refused: true}, {Refused: true}}, []int{0, 0, 0}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := emptyFleet(t)
			f.target = 4
			l := f.training(4)
			f.pods["p02"].rejected = true
			f.drop(f.pods["p02"], l)
			if got := askedOneByOne(f, l, "p02", c.said...); !slices.Equal(got, c.want) {
				t.Errorf("after each of them so many are lost: %v", got)
			}
			f.pass(probePatience - time.Millisecond)
			if got := len(l.machine.losses); got != c.want[len(c.want)-1] {
				t.Errorf("before their time is over %d are lost", got)
			}
			f.pass(time.Millisecond)
			if got := len(l.machine.losses); got != c.then {
				t.Errorf("when their time is over %d are lost", got)
			}
		})
	}
}

// A network refuses who is to connect to a member that cannot come again either, and what was connected before stays.
func TestStepsOutweighANetworkThatRefuses(t *testing.T) {
	f := emptyFleet(t)
	f.target = 4
	l := f.training(4)
	p := f.pods["p03"]
	f.cut(p, false)
	f.drop(p, l)
	refused := 0
	for i := range 30 {
		f.turn(l)
		p.rejected = i > 5
		refused = max(refused, len(l.machine.members["p03"].probe.refused))
	}
	if refused < enoughWitnesses {
		t.Fatalf("%d are refused", refused)
	}
	if wrong := f.losses(l); wrong != "" {
		t.Error(wrong)
	}
}

// Steps that the world had made before the session ended, and that the operator hears of later, outweigh nothing.
func TestStepsBeforeTheEndOutweighNothing(t *testing.T) {
	f := emptyFleet(t)
	f.target = 4
	l := f.training(4)
	for range 12 {
		for _, uid := range f.uids() {
			f.move(f.pods[uid])
		}
	}
	if known := l.machine.furthest(); f.done[1] < known+3 {
		t.Fatalf("%d steps are made, and the operator knows of %d", f.done[1], known)
	}
	f.end(f.pods["p03"])
	f.talk(l, f.pods["p03"])
	expectLoss(t, f, l, 0, "find nobody at its port")
}

// What one node's network refuses is no word of two, where peers on other nodes can be asked.
func TestRefusalsComeFromTwoNodes(t *testing.T) {
	f := emptyFleet(t)
	f.target = 4
	l := f.training(4)
	// p00 and p03 are on one node, p01 and p02 on others.
	f.pods["p02"].rejected = true
	f.drop(f.pods["p02"], l)
	said := map[string]Probed{"p00": {Refused: true}, "p03": {Refused: true}, "p01": {}}
	var inOrder []Probed
	for _, uid := range l.machine.members["p02"].probe.peers {
		inOrder = append(inOrder, said[uid])
	}
	if len(inOrder) != 3 {
		t.Fatalf("%d are asked", len(inOrder))
	}
	askedOneByOne(f, l, "p02", inOrder...)
	f.pass(probePatience)
	if wrong := f.losses(l); wrong != "" {
		t.Error(wrong)
	}
}

// What peers have found before the session ended, or of a member that has come again, says nothing.
func TestFindingsAreOfTheLastSession(t *testing.T) {
	f := emptyFleet(t)
	f.target = 3
	l := f.training(3)
	p := f.pods["p02"]
	f.drop(p, l)
	f.pods["p00"].fail("connection reset by peer")
	f.tellState(f.pods["p00"])
	asked := l.machine.members["p02"].probe.number
	if asked == 0 {
		t.Fatal("nobody is asked")
	}
	f.connectTo(p, l)
	f.drop(p, l)
	f.pass(time.Millisecond)
	for _, uid := range []string{"p00", "p01"} {
		r := f.pods[uid].report()
		r.Probed = []Probed{{Number: asked, Refused: true}}
		f.told(f.pods[uid], f.handle(l, AgentReported{uid, r}))
	}
	if wrong := f.losses(l); wrong != "" {
		t.Error(wrong)
	}
}

// Peers are asked when a session ends, and when too many do only once a fault is reported.
func TestAStormOfSessionsHasNobodyAsked(t *testing.T) {
	f := emptyFleet(t)
	const pods = MaxProbes + 4
	f.target = pods
	l := f.training(pods)
	uids := f.uids()
	for _, uid := range uids[:MaxProbes] {
		f.drop(f.pods[uid], l)
	}
	if l.machine.probes != MaxProbes {
		t.Errorf("peers are asked %d times about %d", l.machine.probes, MaxProbes)
	}
	for _, uid := range uids[:MaxProbes] {
		f.connectTo(f.pods[uid], l)
	}
	f.pass(10 * time.Second)
	f.turns(l, 1)
	before := l.machine.probes
	l.machine.world.finishing = true // nobody is asked as long as all are dropped
	for _, uid := range uids[:MaxProbes+1] {
		f.drop(f.pods[uid], l)
	}
	l.machine.world.finishing = false
	f.tellState(f.pods[uids[pods-1]])
	if l.machine.probes != before {
		t.Errorf("peers are asked %d times about %d that are away", l.machine.probes-before, MaxProbes+1)
	}
	f.pods[uids[pods-1]].fail("connection reset by peer")
	f.tellState(f.pods[uids[pods-1]])
	if l.machine.probes != before+MaxProbes+1 {
		t.Errorf("a peer reports a fault, and peers are asked %d times about %d that are away", l.machine.probes-before, MaxProbes+1)
	}
}

// Whoever hangs up again and again has its peers asked about it once in 3 s.
func TestHangingUpHasPeersAskedSeldom(t *testing.T) {
	f := emptyFleet(t)
	f.target = 3
	l := f.training(3)
	for range 19 {
		f.drop(f.pods["p02"], l)
		f.pass(probeEvery / 10)
		f.connectTo(f.pods["p02"], l)
		f.tellState(f.pods["p00"])
		f.tellState(f.pods["p01"])
	}
	if l.machine.probes != 2 {
		t.Errorf("in less than 6 s they are asked %d times", l.machine.probes)
	}
}
