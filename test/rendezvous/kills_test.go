package rendezvous

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/internal/identity"
	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvoustest"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

const (
	// changesVariable has a leader follow the pods of its namespace for as long as it leads.
	changesVariable = "TEST_LEADER_CHANGES"
	// doingVariable is the file in which a leader notes what it is at, for when it is killed.
	doingVariable = "TEST_LEADER_DOING"
	// wishAnnotation says on a pod what the controller would make of it: leaving, or lost.
	wishAnnotation = "test.concertina.dev/wish"
	wishLeaving    = "leaving"
	wishLost       = "lost"
	// snapshotEvery is after how many steps a snapshot is taken.
	snapshotEvery = 5
	// enoughKills is how many must have hit everything.
	enoughKills = 400
	// standTime is how long a program stands for an operator that has gone. The protocol has 30 s, for which no campaign has time. It is
	// longer than the 5 s from one hold to the next, or barriers would fall apart under an operator that lives; where this machine is slow
	// some do, which has to lose nothing either.
	standTime = 6 * time.Second
	// killsOfATeam is after how many kills another job begins: tokens end after ten minutes.
	killsOfATeam = 40
)

// wished is the gang as the annotations of its pods have it.
func wished(pods []*corev1.Pod, durable rendezvous.Record) rendezvous.Gang {
	gang := (&team{pods: pods}).gang(durable)
	gang.Minimum, gang.Target = 2, 4
	gang.BarrierTimeout, gang.GrowthWindow = patience, 50*time.Millisecond
	for i, pod := range pods {
		m := &gang.Members[i]
		_, _ = fmt.Sscanf(pod.Name, "digits-1-%d", &m.Ordinal)
		switch pod.Annotations[wishAnnotation] {
		case wishLeaving:
			m.Leaving = rendezvous.ReasonScaledDown
		case wishLost:
			m.Lost, m.Ended = "its pod has ended", true
		}
	}
	return gang
}

// What a leader is at when it is killed.
const (
	inATakeover  = "a takeover"
	inAnAdoption = "an adoption"
	inABarrier   = "a barrier"
	inAWrite     = "the write of a round"
	inAPublish   = "a publish"
	inARecovery  = "a recovery"
	inTraining   = "training"
)

// doing is what a leader is at. The world of an earlier one is adopted once all that are in it obey the new one.
func doing(seen *rendezvous.Inspection) string {
	unled := slices.ContainsFunc(seen.Members, func(member rendezvous.MemberInspection) bool {
		return member.InWorld && member.Term < seen.Term
	})
	switch {
	case seen.Term == 0:
		return inATakeover
	case seen.Recovery != nil:
		return inARecovery
	case seen.Write != nil && seen.Write.Asked:
		return inAWrite
	case seen.World == nil || seen.World.Adopted && unled:
		return inAnAdoption
	case seen.Barrier != nil:
		return inABarrier
	case seen.World.Entered < int(seen.World.Workers):
		return inAPublish
	}
	return inTraining
}

// aims are what some leaders are killed at; others are killed around the write of a round, or whenever.
var aims = []string{inAnAdoption, inABarrier, inAPublish, inARecovery}

// noteDoing notes what a leader is at in a file, until it ends. When that is what it is to be killed at it is, within 2 ms.
func noteDoing(ctx context.Context, path string, inspect func() rendezvous.Inspection) {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return // the test that made it is over
	}
	last := ""
	for ctx.Err() == nil {
		if seen := inspect(); doing(&seen) != last {
			last = doing(&seen)
			_, _ = fmt.Fprintln(file, last)
			if last == os.Getenv(killVariable) {
				time.AfterFunc(rand.N(2*time.Millisecond), killOurselves)
			}
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// wasDoing is what a leader was at last.
func wasDoing(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return cmp.Or(lines[len(lines)-1], inATakeover)
}

// TestKilledWhileWorldsChange kills leaders, each a process of its own, while workers come, leave and end: in barriers,
// beside the writes of rounds, in publishes, in recoveries and in adoptions, which each leader notes. Whatever an agent was told stays true, the
// record never goes back, a step takes all ranks of a world, no step that was made is lost or made twice, and the last leader has a world
// that trains. While nobody leads no program stands for longer than a hold. KILLS says how many, 8 if it does not.
func TestKilledWhileWorldsChange(t *testing.T) {
	kills := 8
	if text := os.Getenv("KILLS"); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatalf("KILLS: %v", err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	where, changes := map[string]int{}, map[string]int{}
	for done := 0; done < kills; done += killsOfATeam {
		t.Run(fmt.Sprintf("from kill %d on", done), func(t *testing.T) {
			newUnrest(t, random, where, changes).play(min(killsOfATeam, kills-done))
		})
	}
	t.Logf("%d kills: %v, while %v", kills, where, changes)
	for _, what := range append(aims, inAWrite) {
		if kills >= enoughKills && where[what] == 0 {
			t.Errorf("of %d leaders nobody was killed in %s", kills, what)
		}
	}
}

// unrest is a job whose leaders are killed.
type unrest struct {
	t       *testing.T
	random  *rand.Rand
	team    *team
	socket  *os.File
	address string
	agents  map[string]*rendezvoustest.Agent // by the name of the pod, of those that live
	wishes  map[string]string
	seen    *worlds
	// steps is where all of them make their steps.
	steps *rendezvoustest.Collective
	last  rendezvous.Record
	// where counts what leaders were at when they were killed, changes what they were given to do.
	where, changes map[string]int
}

func newUnrest(t *testing.T, random *rand.Rand, where, changes map[string]int) *unrest {
	u := &unrest{
		t: t, random: random, team: newTeam(t, 0), agents: map[string]*rendezvoustest.Agent{}, wishes: map[string]string{},
		seen: &worlds{digests: map[uint64]string{}, ranks: map[[2]uint64]string{}}, where: where, changes: changes,
		steps: rendezvoustest.NewCollective(),
	}
	u.socket, u.address = listen(t)
	for range 3 {
		u.add()
	}
	return u
}

// add makes one more worker.
func (u *unrest) add() {
	i := len(u.team.pods)
	pod := newPod(u.t, u.team.key.Namespace, fmt.Sprintf("digits-1-%d", i))
	u.team.pods = append(u.team.pods, pod)
	token := newToken(u.t, u.team.key.Namespace, pod, identity.Audience)
	u.team.tokens[pod.Name] = token
	agent := rendezvoustest.Start(rendezvoustest.Config{
		Address: u.address, Roots: u.team.roots, ServerName: serviceName,
		Token: func() string { return token }, Heartbeat: 50 * time.Millisecond,
		Elastic: true, StepEvery: 5 * time.Millisecond, SnapshotEvery: snapshotEvery, Collective: u.steps, Stand: standTime,
		Hello: &rendezvousv1.Hello{
			Protocol: 2, Namespace: u.team.key.Namespace, Job: u.team.key.Name, Attempt: 1,
			PodName: pod.Name, PodUid: string(pod.UID), Address: fmt.Sprintf("10.0.0.%d", i+1), MasterPort: 4000,
		},
	})
	u.t.Cleanup(agent.Stop)
	u.agents[pod.Name] = agent
}

// wish has the controller want something of a pod.
func (u *unrest) wish(name, what string) {
	u.wishes[name] = what
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = u.team.key.Namespace, name
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, wishAnnotation, what))
	if err := cluster.Patch(u.t.Context(), pod, patch); err != nil {
		u.t.Fatal(err)
	}
}

// stay are those that nothing is wanted of.
func (u *unrest) stay() []string {
	names := slices.Sorted(maps.Keys(u.agents))
	return slices.DeleteFunc(names, func(name string) bool { return u.wishes[name] != "" })
}

// outlivesOne says whether the newest world holds more than one snapshot of its own: a job of which nobody has one any more
// starts over, and no leader of this attempt has a world again.
func (u *unrest) outlivesOne() bool {
	in := 0
	for _, name := range u.stay() {
		if s := u.agents[name].Snapshot(); s.Round == u.last.Round && s.Done >= u.last.FromStep+snapshotEvery+1 {
			in++
		}
	}
	return u.last.Round > 0 && in >= int(u.last.Workers)
}

// change has workers come, leave or end, or nothing happen, and one end for a recovery. It says which.
func (u *unrest) change(recovery bool) string {
	stay := u.stay()
	switch {
	case len(stay) < 3:
		u.add()
		return "a worker comes"
	case recovery && u.outlivesOne():
	case u.random.IntN(4) == 0:
		return "nothing happens"
	case u.random.IntN(2) == 0 || !u.outlivesOne():
		u.wish(stay[u.random.IntN(len(stay))], wishLeaving)
		return "a worker leaves"
	}
	name := stay[u.random.IntN(len(stay))]
	u.agents[name].Stop()
	delete(u.agents, name)
	u.wish(name, wishLost)
	return "a worker ends"
}

// play kills so many leaders, and then none.
func (u *unrest) play(kills int) {
	defer u.tell()
	for range kills {
		when := killNever
		switch aim := u.random.IntN(8); aim {
		case 0, 1, 2, 3:
			when = aims[aim]
		case 4:
			when = killDurable
		case 5:
			when = strconv.Itoa(u.random.IntN(20_000))
		}
		doing := filepath.Join(u.t.TempDir(), "doing")
		if err := os.WriteFile(doing, nil, 0o600); err != nil {
			u.t.Fatal(err)
		}
		l := startLeader(u.t, u.team.key.Namespace, u.socket, when, changesVariable+"=yes", doingVariable+"="+doing)
		u.settle(l)
		u.changes[u.change(when == inARecovery)]++
		l.killWithin(u.t, time.Duration(u.random.IntN(400))*time.Millisecond)
		was := wasDoing(u.t, doing)
		if u.where[was]++; (was == inABarrier || was == inAWrite) && u.where[was]%2 == 1 {
			u.goesOn()
		}
		u.check()
	}
	for len(u.stay()) < 3 {
		u.add()
	}
	startLeader(u.t, u.team.key.Namespace, u.socket, killNever, changesVariable+"=yes")
	for _, name := range u.stay() {
		before := u.agents[name].Snapshot().Done
		eventually(u.t, name+" trains under the last leader", func() bool {
			s := u.agents[name].Snapshot()
			return s.Term > u.last.Term && s.Round > 0 && s.Done > before+5
		})
	}
	u.check()
}

// goesOn waits, while nobody leads, until no program stands at a barrier any more.
func (u *unrest) goesOn() {
	for _, name := range slices.Sorted(maps.Keys(u.agents)) {
		eventually(u.t, name+" is let go while nobody leads", func() bool {
			s := u.agents[name].Snapshot()
			return s.Over || s.Waiting != rendezvousv1.Waiting_WAITING_PARKED // who was released has nothing to go on with
		})
	}
}

// tell says how everything stands when something went wrong.
func (u *unrest) tell() {
	if !u.t.Failed() {
		return
	}
	u.t.Logf("the record was %+v", u.last)
	for _, name := range slices.Sorted(maps.Keys(u.agents)) {
		s := u.agents[name].Snapshot()
		u.t.Logf("%s (%q): term %d, round %d, step %d, waits for %s, exited %v, over %v, its last session: %v; refused %v", name, u.wishes[name],
			s.Term, s.Round, s.Done, s.Waiting, s.Exited, s.Over, s.Last, s.Refused[max(0, len(s.Refused)-2):])
	}
}

// settle lets a leader get on, most of the time until it has taken the job over.
func (u *unrest) settle(l *leader) {
	if u.random.IntN(4) == 0 {
		return // it is killed as it takes over
	}
	deadline := time.After(2 * time.Second)
	for _, name := range u.stay() {
		for u.agents[name].Snapshot().Term <= u.last.Term {
			select {
			case err := <-l.ended:
				l.ended <- err
				return
			case <-deadline:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

// killWithin waits so long for a leader to kill itself, and then kills it.
func (l *leader) killWithin(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case err := <-l.ended:
		l.ended <- err
	case <-time.After(d):
		_ = l.cmd.Process.Signal(syscall.SIGKILL)
	}
	l.awaitKill(t)
}

// check looks at the record, and at all that the agents were ever told.
func (u *unrest) check() {
	found := durable(u.t.Context(), u.t, u.team.key)
	if found.Round < u.last.Round || found.Term < u.last.Term {
		u.t.Fatalf("the record went from %+v to %+v", u.last, found)
	}
	if found.Round > 0 {
		u.seen.see(u.t, found.Round, found.MembersDigest)
	}
	if made, in := u.steps.Made(); found.Round > in && in > 0 && found.FromStep == 0 {
		u.t.Fatalf("step %d was made in round %d, and round %d begins anew: %+v", made, in, found.Round, found)
	}
	if wrong := u.steps.Wrong(); wrong != "" {
		u.t.Fatal(wrong)
	}
	u.last = found
	for _, name := range slices.Sorted(maps.Keys(u.agents)) {
		s := u.agents[name].Snapshot()
		u.seen.seeAgent(u.t, name, s)
		if s.Over { // it was released
			u.agents[name].Stop()
			delete(u.agents, name)
			u.wish(name, wishLost)
		}
	}
}
