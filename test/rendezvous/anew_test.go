package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/identity"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvoustest"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
	"github.com/concertina-dev/concertina/internal/rendezvous/server"
)

// refusals is a Recorder that counts the writes for jobs that are gone.
type refusals struct {
	rendezvous.Recorder
	gone atomic.Int64
}

func (r *refusals) Record(ctx context.Context, job rendezvous.JobKey, prev, next rendezvous.Record) (rendezvous.Record, error) {
	found, err := r.Recorder.Record(ctx, job, prev, next)
	if errors.Is(err, rendezvous.ErrJobGone) {
		r.gone.Add(1)
	}
	return found, err
}

// life is one of the jobs of a name, with its pods and their agents.
type life struct {
	team   *team
	uid    string
	digest string
	agents []*rendezvoustest.Agent
}

// reborn makes a job anew under the same name, with two pods, and has an operator expect it.
func (team *team) reborn(t *testing.T, number int, leader *server.Server, address string) *life {
	t.Helper()
	newJob(t, team.key.Namespace)
	job := &v1alpha1.TrainingJob{}
	if err := cluster.Get(t.Context(), client.ObjectKey{Namespace: team.key.Namespace, Name: team.key.Name}, job); err != nil {
		t.Fatal(err)
	}
	if found := record.FromStatus(job); found != (rendezvous.Record{}) {
		t.Fatalf("a new job begins with %+v", found)
	}
	one := &life{team: team, uid: string(job.UID)}
	gang := rendezvous.Gang{
		JobUID: one.uid, Attempt: 1, ProcessesPerWorker: 1, HeartbeatTimeout: 5 * time.Second,
		Minimum: 1, Target: 2, BarrierTimeout: 5 * time.Second, GrowthWindow: 50 * time.Millisecond,
	}
	var pods []*corev1.Pod
	uids := make([]string, 2)
	for i := range uids {
		pod := newPod(t, team.key.Namespace, fmt.Sprintf("digits-1-%d", 2*number+i))
		team.tokens[pod.Name] = newToken(t, team.key.Namespace, pod, identity.Audience)
		uids[i] = string(pod.UID)
		gang.Members = append(gang.Members, rendezvous.Member{UID: uids[i], Name: pod.Name, Ordinal: int32(2*number + i), Node: pod.Spec.NodeName})
		pods = append(pods, pod)
	}
	one.digest = rendezvous.MembersDigest(uids)
	leader.Expect(team.key, gang)
	for i, pod := range pods {
		// Not before: an operator that knows of the job before only says that it is gone, and these agents then stop.
		one.agents = append(one.agents, team.speak(t, address, pod, 2*number+i))
	}
	return one
}

// speak starts the elastic agent of a pod.
func (team *team) speak(t *testing.T, address string, pod *corev1.Pod, number int) *rendezvoustest.Agent {
	t.Helper()
	token := team.tokens[pod.Name]
	agent := rendezvoustest.Start(rendezvoustest.Config{
		Address: address, Roots: team.roots, ServerName: serviceName,
		Token: func() string { return token }, Heartbeat: 50 * time.Millisecond,
		Elastic: true, StepEvery: 5 * time.Millisecond, SnapshotEvery: 5,
		Hello: &rendezvousv1.Hello{
			Protocol: 2, Namespace: team.key.Namespace, Job: team.key.Name, Attempt: 1,
			PodName: pod.Name, PodUid: string(pod.UID), Address: fmt.Sprintf("10.0.%d.%d", number/250, 1+number%250), MasterPort: 4000,
		},
	})
	t.Cleanup(agent.Stop)
	return agent
}

// owns fails when the record in the API server is not that of this life.
func (l *life) owns(t *testing.T) rendezvous.Record {
	t.Helper()
	job := &v1alpha1.TrainingJob{}
	if err := cluster.Get(t.Context(), client.ObjectKey{Namespace: l.team.key.Namespace, Name: l.team.key.Name}, job); err != nil {
		t.Fatal(err)
	}
	// Whoever reads a record overlooks one of another job; here it must not be there at all.
	found := record.FromStatus(job)
	if world := job.Status.World; world != nil && world.JobUID != l.uid || found.Round == 1 && found.MembersDigest != l.digest {
		t.Fatalf("the record of job %s is %+v, its two pods have the digest %s", l.uid, world, l.digest)
	}
	return found
}

// alone fails when an agent of this life was ever told of a first world that is not its own.
func (l *life) alone(t *testing.T) {
	t.Helper()
	for i, agent := range l.agents {
		s := agent.Snapshot()
		if s.Violation != "" {
			t.Errorf("agent %d of job %s: %s", i, l.uid, s.Violation)
		}
		if world := s.Worlds[1]; world != nil && world.GetMembersDigest() != l.digest {
			t.Errorf("agent %d of job %s was told of the world %v", i, l.uid, world)
		}
		for round, world := range s.Worlds {
			if world.GetWorkers() > 2 {
				t.Errorf("agent %d of job %s was told of round %d with %d workers", i, l.uid, round, world.GetWorkers())
			}
		}
	}
}

// A job is deleted and made anew under its name, again and again, at any moment of its life. Two operators take turns: each
// hears of every second job only, so it goes on leading one that is long gone, whose pods are still there and speak to
// it. It writes nothing of that into the job that has the name now, whose own world forms.
func TestAJobIsMadeAnewAgainAndAgain(t *testing.T) {
	t.Parallel()
	const lives = 16
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	team := newTeam(t, 0)
	remove := func() {
		job := &v1alpha1.TrainingJob{}
		job.Namespace, job.Name = team.key.Namespace, team.key.Name
		if err := cluster.Delete(t.Context(), job); err != nil {
			t.Fatal(err)
		}
	}
	remove()
	var leaders [2]*server.Server
	var addresses [2]string
	var writes [2]*refusals
	for i := range leaders {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		writes[i] = &refusals{Recorder: recorder()}
		leaders[i], addresses[i] = team.serve(t, listener, writes[i]), listener.Addr().String()
	}
	var before *life
	number := 0
	t.Cleanup(func() {
		if t.Failed() {
			for i, leader := range leaders {
				seen, _ := leader.Inspect(team.key)
				t.Logf("job %d; operator %d: %+v", number, i, seen)
			}
		}
	})
	formed, late := 0, 0
	for ; number < lives; number++ {
		now := team.reborn(t, number, leaders[number%2], addresses[number%2])
		now.owns(t)
		if before != nil {
			// The operator of the job before wants to write another round, or the first one.
			older := writes[(number+1)%2]
			gone := older.gone.Load()
			if before.agents[0].Snapshot().Round > 0 {
				before.agents[0].Exit(9)
				eventually(t, "the operator of the job that is gone has noticed", func() bool { return older.gone.Load() > gone })
				late++
			}
			before.alone(t)
		}
		if number == lives-1 || random.IntN(2) == 0 {
			eventually(t, "the world has formed", func() bool { return now.owns(t).Round >= 1 })
			for _, agent := range now.agents {
				eventually(t, "it trains", func() bool { return agent.Snapshot().Done > 0 })
			}
			formed++
		} else {
			for end := time.Now().Add(time.Duration(random.IntN(60)) * time.Millisecond); time.Now().Before(end); {
				now.owns(t)
			}
		}
		now.alone(t)
		if number < lives-1 {
			remove()
		}
		before = now
	}
	before.owns(t)
	t.Logf("%d worlds have formed, %d operators came late, %d writes were refused", formed, late, writes[0].gone.Load()+writes[1].gone.Load())
	if late == 0 {
		t.Error("no operator wanted to write for a job that was gone")
	}
}
