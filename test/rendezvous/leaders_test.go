package rendezvous

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous/server"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/internal/identity"
	"github.com/concertina-dev/concertina/internal/pki"
	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvoustest"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

const serviceName = "concertina-rendezvous.concertina-system.svc"

// servedNames are what the leaders' certificate is good for. Agents of this machine use the last.
var servedNames = []string{serviceName, "localhost"}

// team is a job with its pods, their tokens and their agents, and the operator's authority.
type team struct {
	key    rendezvous.JobKey
	pods   []*corev1.Pod
	tokens map[string]string
	roots  *x509.CertPool
	secret client.ObjectKey
}

func newTeam(t *testing.T, workers int) *team {
	t.Helper()
	namespace := newNamespace(t)
	team := &team{
		key: newJob(t, namespace), tokens: map[string]string{}, roots: x509.NewCertPool(),
		secret: client.ObjectKey{Namespace: namespace, Name: "authority"},
	}
	for i := range workers {
		pod := newPod(t, namespace, fmt.Sprintf("digits-1-%d", i))
		team.pods = append(team.pods, pod)
		team.tokens[pod.Name] = newToken(t, namespace, pod, identity.Audience)
	}
	team.roots.AppendCertsFromPEM(team.authority(t.Context(), t).Bundle())
	return team
}

func (team *team) authority(ctx context.Context, t *testing.T) *pki.Authority {
	t.Helper()
	authority, err := pki.Load(ctx, cluster, team.secret, servedNames, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

func (team *team) gang(durable rendezvous.Record) rendezvous.Gang {
	gang := rendezvous.Gang{Attempt: 1, ProcessesPerWorker: 1, HeartbeatTimeout: 5 * time.Second, Durable: durable}
	for i, pod := range team.pods {
		gang.Members = append(gang.Members, rendezvous.Member{
			UID: string(pod.UID), Name: pod.Name, Ordinal: int32(i), Node: pod.Spec.NodeName,
		})
	}
	return gang
}

// agent starts the agent of a pod.
func (team *team) agent(t *testing.T, address string, worker int) *rendezvoustest.Agent {
	t.Helper()
	pod := team.pods[worker]
	agent := rendezvoustest.Start(rendezvoustest.Config{
		Address: address, Roots: team.roots, ServerName: serviceName,
		Token: func() string { return team.tokens[pod.Name] },
		Hello: &rendezvousv1.Hello{
			Protocol: 2, Namespace: team.key.Namespace, Job: team.key.Name, Attempt: 1,
			PodName: pod.Name, PodUid: string(pod.UID), Address: fmt.Sprintf("10.0.0.%d", worker+1), MasterPort: 4000,
		},
	})
	t.Cleanup(agent.Stop)
	return agent
}

// lead starts a leader in this process and returns it with its address.
func (team *team) lead(t *testing.T, recorder rendezvous.Recorder) (*server.Server, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return team.serve(t, listener, recorder), listener.Addr().String()
}

func (team *team) serve(t *testing.T, listener net.Listener, recorder rendezvous.Recorder) *server.Server {
	t.Helper()
	server := server.NewServer(server.Options{
		Listener: listener, TLS: team.authority(t.Context(), t).TLSConfig(),
		Authenticator: reviewer(t), Recorder: recorder,
	})
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- server.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return server
}

func await(t *testing.T, agent *rendezvoustest.Agent, what string, condition func(rendezvoustest.Snapshot) bool) rendezvoustest.Snapshot {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	snapshot, err := agent.Await(ctx, condition)
	if err != nil {
		t.Fatalf("waited in vain until %s: %v; %+v", what, err, snapshot)
	}
	return snapshot
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("waited in vain until %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// gate is a Recorder that lets nothing through while it is closed.
type gate struct {
	rendezvous.Recorder
	mu   sync.Mutex
	open chan struct{}
}

func (g *gate) Record(ctx context.Context, job rendezvous.JobKey, prev, next rendezvous.Record) (rendezvous.Record, error) {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	if open != nil {
		<-open
	}
	return g.Recorder.Record(ctx, job, prev, next)
}

// Two operators lead at once, as when a lease was lost and the old holder has not noticed. What the
// older one writes fails, and agents that have obeyed the newer one refuse what it says.
func TestTwoLeadersAtOnce(t *testing.T) {
	t.Parallel()
	team := newTeam(t, 2)
	writes := &gate{Recorder: recorder()}
	older, olderAddress := team.lead(t, writes)
	older.Expect(team.key, team.gang(rendezvous.Record{}))
	eventually(t, "the older leader has its term", func() bool { return durable(t.Context(), t, team.key).Term == 1 })

	newer, newerAddress := team.lead(t, recorder())
	newer.Expect(team.key, team.gang(rendezvous.Record{})) // its view is old, too
	eventually(t, "the newer leader has its term", func() bool { return durable(t.Context(), t, team.key).Term == 2 })
	first := team.agent(t, newerAddress, 0)
	await(t, first, "the first worker has obeyed the newer leader", func(s rendezvoustest.Snapshot) bool { return s.Term == 2 })

	// The older leader still thinks that it leads, and gets both workers. Its writes are slow.
	writes.mu.Lock()
	writes.open = make(chan struct{})
	writes.mu.Unlock()
	first.Redirect(olderAddress)
	await(t, first, "the first worker has refused the older leader", func(s rendezvoustest.Snapshot) bool {
		return slices.Contains(s.Refused, "term 1 round 0, after term 2 round 0")
	})
	second := team.agent(t, olderAddress, 1)
	await(t, second, "the second worker has obeyed the older leader", func(s rendezvoustest.Snapshot) bool { return s.Term == 1 })
	if older.Observe(team.key).Deposed {
		t.Fatal("the older leader is deposed before it has written")
	}
	close(writes.open)
	eventually(t, "the older leader's write has failed", func() bool { return older.Observe(team.key).Deposed })
	if found := durable(t.Context(), t, team.key); found.Term != 2 || found.Round != 0 {
		t.Errorf("the older leader has written %+v", found)
	}
	if worlds := second.Snapshot().Worlds; len(worlds) != 0 {
		t.Errorf("the older leader has published %v", worlds)
	}

	// Both find the newer leader, and form a world.
	for _, agent := range []*rendezvoustest.Agent{first, second} {
		agent.Redirect(newerAddress)
	}
	for _, agent := range []*rendezvoustest.Agent{first, second} {
		await(t, agent, "the world has formed", func(s rendezvoustest.Snapshot) bool { return s.Round == 1 && s.Term == 2 })
	}
}

// The older leader has published its round and cannot be reached; the newer one adopts the world.
func TestNewerLeaderAdoptsTheWorldOfTheOlder(t *testing.T) {
	t.Parallel()
	team := newTeam(t, 2)
	older, olderAddress := team.lead(t, recorder())
	older.Expect(team.key, team.gang(rendezvous.Record{}))
	agents := []*rendezvoustest.Agent{team.agent(t, olderAddress, 0), team.agent(t, olderAddress, 1)}
	for _, agent := range agents {
		await(t, agent, "the world has formed", func(s rendezvoustest.Snapshot) bool { return s.Round == 1 })
		agent.Step(3)
	}
	newer, newerAddress := team.lead(t, recorder())
	newer.Expect(team.key, team.gang(durable(t.Context(), t, team.key)))
	agents[1].Redirect(newerAddress)
	eventually(t, "one worker's steps are enough to adopt", func() bool { return newer.Observe(team.key).Round == 1 })
	agents[0].Redirect(newerAddress)
	eventually(t, "both are in the world again", func() bool {
		seen := newer.Observe(team.key)
		return seen.Members[string(team.pods[0].UID)].InWorld && seen.Members[string(team.pods[1].UID)].InWorld
	})
	for _, agent := range agents {
		s := await(t, agent, "it has obeyed the newer leader", func(s rendezvoustest.Snapshot) bool { return s.Term == 2 })
		if len(s.Worlds) != 1 || s.Violation != "" {
			t.Errorf("it was told of %v (%s)", s.Worlds, s.Violation)
		}
	}
	if found := durable(t.Context(), t, team.key); found.Round != 1 || found.Term != 2 {
		t.Errorf("the record is at %+v", found)
	}
}
