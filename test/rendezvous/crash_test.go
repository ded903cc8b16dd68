package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous/server"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/identity"
	"github.com/concertina-dev/concertina/internal/pki"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvoustest"
)

// A leader in a process of its own is this test binary, started again with these variables. It
// serves on the socket that it inherits as file 3, and ends when its standard input does.
const (
	leaderVariable     = "TEST_LEADER_NAMESPACE"
	kubeconfigVariable = "TEST_LEADER_KUBECONFIG"
	// killVariable says when the leader kills itself: killNever, killDurable, one of the aims, or a number of
	// microseconds after it asked for a round.
	killVariable = "TEST_LEADER_KILL"

	killNever   = "never"
	killDurable = "durable"
)

// killer is a Recorder that kills its process with SIGKILL around the write of a round.
type killer struct {
	rendezvous.Recorder
	when string
}

func (k killer) Record(ctx context.Context, job rendezvous.JobKey, prev, next rendezvous.Record) (rendezvous.Record, error) {
	if delay, err := strconv.Atoi(k.when); err == nil && next.Round > prev.Round {
		time.AfterFunc(time.Duration(delay)*time.Microsecond, killOurselves)
	}
	found, err := k.Recorder.Record(ctx, job, prev, next)
	if err == nil && next.Round > prev.Round && k.when == killDurable {
		killOurselves()
	}
	return found, err
}

func killOurselves() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// leadUntilKilled is the leader's process.
func leadUntilKilled() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := leadJob(ctx); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "leader:", err)
		return 1
	}
	return 0
}

func leadJob(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv(kubeconfigVariable))
	if err != nil {
		return err
	}
	config.QPS = -1
	c, err := newClient(config)
	if err != nil {
		return err
	}
	namespace := os.Getenv(leaderVariable)
	authority, err := pki.Load(ctx, c, client.ObjectKey{Namespace: namespace, Name: "authority"}, servedNames, time.Now)
	if err != nil {
		return err
	}
	reviewer, err := identity.NewReviewer(config)
	if err != nil {
		return err
	}
	listener, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	server := server.NewServer(server.Options{
		Listener: listener, TLS: authority.TLSConfig(), Authenticator: reviewer,
		Recorder: killer{record.Status{Live: c, Writer: c.Status()}, os.Getenv(killVariable)},
	})
	gang, err := readGang(ctx, c, namespace)
	if err != nil {
		return err
	}
	key := rendezvous.JobKey{Namespace: namespace, Name: "digits"}
	server.Expect(key, gang)
	if os.Getenv(changesVariable) != "" {
		go followPods(ctx, c, func(gang rendezvous.Gang) { server.Expect(key, gang) }, namespace)
	}
	if path := os.Getenv(doingVariable); path != "" {
		go noteDoing(ctx, path, func() rendezvous.Inspection {
			seen, _ := server.Inspect(key)
			return seen
		})
	}
	return server.Start(ctx)
}

// readGang is what the controller would expect: all pods of the namespace.
func readGang(ctx context.Context, c client.Client, namespace string) (rendezvous.Gang, error) {
	job := &v1alpha1.TrainingJob{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "digits"}, job); err != nil {
		return rendezvous.Gang{}, err
	}
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return rendezvous.Gang{}, err
	}
	team := team{}
	for i := range pods.Items {
		team.pods = append(team.pods, &pods.Items[i])
	}
	if os.Getenv(changesVariable) != "" {
		return wished(team.pods, record.FromStatus(job)), nil
	}
	return team.gang(record.FromStatus(job)), nil
}

// followPods expects what the pods are wished to be, until the process ends.
func followPods(ctx context.Context, c client.Client, expect func(rendezvous.Gang), namespace string) {
	for ctx.Err() == nil {
		if gang, err := readGang(ctx, c, namespace); err == nil {
			expect(gang)
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// leader is a leader's process, seen from outside.
type leader struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan error
}

func startLeader(t *testing.T, namespace string, socket *os.File, kill string, more ...string) *leader {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(executable)
	cmd.Env = append(os.Environ(), leaderVariable+"="+namespace, kubeconfigVariable+"="+kubeconfig, killVariable+"="+kill)
	cmd.Env = append(cmd.Env, more...)
	cmd.ExtraFiles = []*os.File{socket}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l := &leader{cmd: cmd, stdin: stdin, ended: make(chan error, 1)}
	go func() { l.ended <- cmd.Wait() }()
	t.Cleanup(l.stop)
	return l
}

// stop ends the process, if it still runs.
func (l *leader) stop() {
	_ = l.stdin.Close()
	select {
	case err := <-l.ended:
		l.ended <- err
	case <-time.After(10 * time.Second):
		_ = l.cmd.Process.Kill()
	}
}

// awaitKill waits until the process has killed itself.
func (l *leader) awaitKill(t *testing.T) {
	t.Helper()
	select {
	case err := <-l.ended:
		l.ended <- err
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("the leader ended with %v, not by its own SIGKILL", err)
		}
	case <-time.After(patience):
		t.Fatal("the leader never came to the point where it is killed")
	}
}

// listen returns a socket that outlives the leaders that serve on it.
func listen(t *testing.T) (*os.File, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	socket, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	t.Cleanup(func() { _ = socket.Close() })
	return socket, listener.Addr().String()
}

// worlds checks, over all that was ever seen, that a round has one world.
type worlds struct {
	digests map[uint64]string
	ranks   map[[2]uint64]string // who is which worker rank of which round
}

func (w *worlds) see(t *testing.T, round uint64, digest string) {
	t.Helper()
	if known, ok := w.digests[round]; ok && known != digest {
		t.Fatalf("round %d has two worlds: %s and %s", round, known, digest)
	}
	w.digests[round] = digest
}

func (w *worlds) seeAgent(t *testing.T, name string, s rendezvoustest.Snapshot) {
	t.Helper()
	if s.Violation != "" {
		t.Fatalf("%s: %s", name, s.Violation)
	}
	for round, world := range s.Worlds {
		w.see(t, round, world.GetMembersDigest())
		place := [2]uint64{round, uint64(world.GetWorkerRank())}
		if other, ok := w.ranks[place]; ok && other != name {
			t.Fatalf("rank %d of round %d is %s and %s", place[1], round, other, name)
		}
		w.ranks[place] = name
	}
}

// TestKilledBetweenDurableAndPublished kills the leader 50 times after it has made a round durable
// and before it can publish it. The agents live on.
func TestKilledBetweenDurableAndPublished(t *testing.T) {
	const kills = 50
	team := newTeam(t, 3)
	socket, address := listen(t)
	seen := &worlds{digests: map[uint64]string{}, ranks: map[[2]uint64]string{}}
	var agents []*rendezvoustest.Agent
	for i := range team.pods {
		agents = append(agents, team.agent(t, address, i))
	}
	last := rendezvous.Record{}
	for kill := range kills {
		startLeader(t, team.key.Namespace, socket, killDurable).awaitKill(t)
		found := durable(t.Context(), t, team.key)
		if found.Round != last.Round+1 || found.Term != last.Term+1 {
			t.Fatalf("after kill %d the record is at term %d, round %d; before it was at term %d, round %d",
				kill+1, found.Term, found.Round, last.Term, last.Round)
		}
		seen.see(t, found.Round, found.MembersDigest)
		last = found
	}
	for i, agent := range agents {
		s := agent.Snapshot()
		if len(s.Worlds) != 0 {
			t.Errorf("agent %d was told of %v: the leader was killed too late", i, s.Worlds)
		}
	}
	startLeader(t, team.key.Namespace, socket, killNever)
	for i, agent := range agents {
		s := await(t, agent, "a world forms at last", func(s rendezvoustest.Snapshot) bool { return s.Round == last.Round+1 })
		seen.seeAgent(t, team.pods[i].Name, s)
	}
	if len(seen.digests) != kills+1 {
		t.Errorf("%d rounds were seen, want %d", len(seen.digests), kills+1)
	}
}

// TestKilledAnywhere kills the leader at random moments around the write of a round: before it, and
// after some or all agents have learned of it. Whatever an agent was told stays true.
func TestKilledAnywhere(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	rounds, terms := 0, uint64(0)
	for range 3 {
		r, last := killUntilAWorldLives(t, random)
		rounds, terms = rounds+r, terms+last
	}
	t.Logf("%d rounds in %d terms", rounds, terms)
}

// killUntilAWorldLives kills leaders of one team until one of them finds a world that has formed. It
// returns how many rounds there were, and the last term.
func killUntilAWorldLives(t *testing.T, random *rand.Rand) (rounds int, term uint64) {
	t.Helper()
	team := newTeam(t, 3)
	socket, address := listen(t)
	seen := &worlds{digests: map[uint64]string{}, ranks: map[[2]uint64]string{}}
	var agents []*rendezvoustest.Agent
	for i := range team.pods {
		agents = append(agents, team.agent(t, address, i))
	}
	last := rendezvous.Record{}
	for lives, tries := false, 1; !lives; tries++ {
		// The window grows, so that a write gets through on a slow machine, too.
		l := startLeader(t, team.key.Namespace, socket, strconv.Itoa(random.IntN(2000*tries)))
		lives = !l.killedOrAdopting(t, agents, last.Term)
		found := durable(t.Context(), t, team.key)
		if found.Round < last.Round || found.Term <= last.Term {
			t.Fatalf("the record went from %+v to %+v", last, found)
		}
		if found.Round > 0 {
			seen.see(t, found.Round, found.MembersDigest)
		}
		last = found
		for i, agent := range agents {
			s := agent.Snapshot()
			seen.seeAgent(t, team.pods[i].Name, s)
			if lives && (s.Round != found.Round || s.Digest != found.MembersDigest) {
				t.Fatalf("%s is in round %d, the leader's is %d", team.pods[i].Name, s.Round, found.Round)
			}
		}
	}
	return len(seen.digests), last.Term
}

// killedOrAdopting waits until the leader was killed (true), or all agents have obeyed its term and
// are in one world (false).
func (l *leader) killedOrAdopting(t *testing.T, agents []*rendezvoustest.Agent, lastTerm uint64) bool {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case err := <-l.ended:
			l.ended <- err
			return true
		case <-deadline:
			t.Fatal("the leader neither formed nor adopted a world")
		case <-time.After(5 * time.Millisecond):
		}
		// A leader that has made this round itself is about to be killed.
		together := true
		round := agents[0].Snapshot().Round
		for _, agent := range agents {
			s := agent.Snapshot()
			together = together && s.Round > 0 && s.Round == round && s.Term > lastTerm && s.EnteredTerm[round] <= lastTerm
		}
		if together {
			return false
		}
	}
}
