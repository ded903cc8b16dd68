package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/link"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvoustest"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

var digits = rendezvous.JobKey{Namespace: "team", Name: "digits"}

// fixture is a server on loopback, with its own certificate, record and tokens.
type fixture struct {
	*Server
	address  string
	roots    *x509.CertPool
	recorder *memoryRecorder
	tokens   *tokenTable
	metrics  *prometheus.Registry
	stop     func()
}

func serve(t *testing.T, adjust func(*Options)) *fixture {
	t.Helper()
	certificate, roots := serverCertificate(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{
		address: listener.Addr().String(), roots: roots,
		recorder: &memoryRecorder{records: map[rendezvous.JobKey]rendezvous.Record{}}, tokens: &tokenTable{identities: map[string]rendezvous.Identity{}, forged: map[string]rendezvous.Identity{}},
		metrics: prometheus.NewRegistry(),
	}
	options := Options{
		Listener: listener, TLS: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		Authenticator: f.tokens, Recorder: f.recorder, Registerer: f.metrics,
	}
	if adjust != nil {
		adjust(&options)
	}
	f.Server = NewServer(options)
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- f.Start(ctx) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	t.Cleanup(f.stop)
	return f
}

func serverCertificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}

// memoryRecorder keeps records in memory.
type memoryRecorder struct {
	mu      sync.Mutex
	records map[rendezvous.JobKey]rendezvous.Record
	hold    chan struct{} // not nil: writes wait for it
}

func (m *memoryRecorder) Record(ctx context.Context, job rendezvous.JobKey, prev, next rendezvous.Record) (rendezvous.Record, error) {
	m.mu.Lock()
	hold := m.hold
	m.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return rendezvous.Record{}, ctx.Err()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if found := m.records[job]; !found.Equal(prev) {
		return found, rendezvous.ErrDeposed
	}
	m.records[job] = next
	return next, nil
}

// set has another leader write the record of the job digits.
func (m *memoryRecorder) set(record rendezvous.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records[digits] = record
}

// tokenTable knows tokens and whose they are, and counts how many it was asked to check. Forged ones claim
// what is not true.
type tokenTable struct {
	mu         sync.Mutex
	identities map[string]rendezvous.Identity
	forged     map[string]rendezvous.Identity
	down       bool
	checked    int
	// hold, if not nil, keeps every check waiting.
	hold chan struct{}
}

func (a *tokenTable) Claim(token string) (rendezvous.Identity, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, table := range []map[string]rendezvous.Identity{a.identities, a.forged} {
		if who, ok := table[token]; ok {
			return who, nil
		}
	}
	return rendezvous.Identity{}, fmt.Errorf("%w: unknown token", rendezvous.ErrUnauthenticated)
}

func (a *tokenTable) Authenticate(ctx context.Context, token string) (rendezvous.Identity, error) {
	a.mu.Lock()
	a.checked++
	hold := a.hold
	a.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return rendezvous.Identity{}, ctx.Err()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return rendezvous.Identity{}, errors.New("the API server is away")
	}
	if who, ok := a.identities[token]; ok {
		return who, nil
	}
	return rendezvous.Identity{}, fmt.Errorf("%w: unknown token", rendezvous.ErrUnauthenticated)
}

// forge makes a token that claims to be of a pod.
func (a *tokenTable) forge(token, pod string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forged[token] = rendezvous.Identity{Namespace: "team", PodName: pod, PodUID: "uid-" + pod, Expires: time.Now().Add(time.Hour)}
}

func (a *tokenTable) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.checked
}

func (a *tokenTable) issue(token string, who rendezvous.Identity) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.identities[token] = who
}

// pod issues a token for a pod and returns how its agent introduces itself.
func (f *fixture) pod(name string) *rendezvousv1.Hello {
	f.tokens.issue("token-"+name, rendezvous.Identity{
		Namespace: "team", PodName: name, PodUID: "uid-" + name, Expires: time.Now().Add(time.Hour),
	})
	return &rendezvousv1.Hello{
		Protocol: 2, Namespace: "team", Job: "digits", Attempt: 1,
		PodName: name, PodUid: "uid-" + name, Address: "10.0.0.1", MasterPort: 4000,
	}
}

func gangOf(attempt int32, names ...string) rendezvous.Gang {
	gang := rendezvous.Gang{Attempt: attempt, ProcessesPerWorker: 1, HeartbeatTimeout: 5 * time.Second}
	for i, name := range names {
		gang.Members = append(gang.Members, rendezvous.Member{UID: "uid-" + name, Name: name, Ordinal: int32(i), Node: "n"})
	}
	return gang
}

func (f *fixture) config(hello *rendezvousv1.Hello) rendezvoustest.Config {
	return rendezvoustest.Config{
		Address: f.address, Roots: f.roots, Hello: hello,
		Token: func() string { return "token-" + hello.GetPodName() },
	}
}

func (f *fixture) agent(t *testing.T, name string) *rendezvoustest.Agent {
	agent := rendezvoustest.Start(f.config(f.pod(name)))
	t.Cleanup(agent.Stop)
	return agent
}

// clientStream is the far end of a session.
type clientStream struct {
	conn *link.Conn
	// err is why there is none.
	err error
}

func (s *clientStream) Send(report *rendezvousv1.Report) error {
	if s.err != nil {
		return s.err
	}
	return s.conn.SendReport(report)
}

// Receive returns the next directive.
func (s *clientStream) Receive() (directive *rendezvousv1.Directive, err error) {
	if s.err != nil {
		return nil, s.err
	}
	for directive == nil && err == nil {
		directive, err = s.conn.Directive()
	}
	return directive, err
}

func (s *clientStream) hangUp() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
}

// open begins a session without saying more than the token.
func (f *fixture) open(t *testing.T, token string) *clientStream {
	t.Helper()
	return f.openWith(t, f.config(&rendezvousv1.Hello{}), token)
}

func (f *fixture) openWith(t *testing.T, config rendezvoustest.Config, token string) *clientStream {
	t.Helper()
	conn, err := rendezvoustest.Open(t.Context(), config, token)
	stream := &clientStream{conn, err}
	late := time.AfterFunc(20*time.Second, stream.hangUp)
	t.Cleanup(func() {
		late.Stop()
		stream.hangUp()
	})
	return stream
}

// converse sends reports on a new stream and returns how the stream ends.
func (f *fixture) converse(t *testing.T, token string, reports ...*rendezvousv1.Report) error {
	t.Helper()
	stream := f.open(t, token)
	for _, report := range reports {
		if err := stream.Send(report); err != nil {
			break // the answer says why
		}
	}
	for {
		if _, err := stream.Receive(); err != nil {
			return err
		}
	}
}

func await(t *testing.T, agent *rendezvoustest.Agent, condition func(rendezvoustest.Snapshot) bool) rendezvoustest.Snapshot {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	snapshot, err := agent.Await(ctx, condition)
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

// eventually waits for the observation of a job.
func (f *fixture) eventually(t *testing.T, what string, condition func(rendezvous.Observation) bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		observed := f.Observe(digits)
		if condition(observed) {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("waited in vain until %s: %+v", what, observed)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func wantCode(t *testing.T, err error, code codes.Code, says string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(err.Error(), says) {
		t.Errorf("the session ended with %v, want %s with %q", err, code, says)
	}
}

func TestGangFormsAWorld(t *testing.T) {
	f := serve(t, nil)
	f.Expect(digits, gangOf(1, "a", "b", "c"))
	a, b := f.agent(t, "a"), f.agent(t, "b")
	f.eventually(t, "two have joined", func(o rendezvous.Observation) bool {
		return o.Members["uid-a"].Connected && o.Members["uid-b"].Connected
	})
	if o := f.Observe(digits); o.Round != 0 {
		t.Fatalf("round %d has begun without everybody", o.Round)
	}
	c := f.agent(t, "c")
	for rank, agent := range []*rendezvoustest.Agent{a, b, c} {
		s := await(t, agent, func(s rendezvoustest.Snapshot) bool { return s.Round == 1 })
		world := s.Worlds[1]
		if int(s.WorkerRank) != rank || world.GetWorkers() != 3 || world.GetMasterAddress() != "10.0.0.1" || world.GetMasterPort() != 4000 {
			t.Errorf("agent %d is in world %v", rank, world)
		}
		if world.GetMembersDigest() != rendezvous.MembersDigest([]string{"uid-a", "uid-b", "uid-c"}) {
			t.Errorf("digest %s", world.GetMembersDigest())
		}
	}
	f.eventually(t, "the world has formed", func(o rendezvous.Observation) bool {
		return o.Members["uid-a"].InWorld && o.Members["uid-b"].InWorld && o.Members["uid-c"].InWorld
	})
	for i, agent := range []*rendezvoustest.Agent{a, b, c} {
		agent.Step(uint64(7 + i))
	}
	f.eventually(t, "everybody has done step 7", func(o rendezvous.Observation) bool { return o.Progress.Step == 7 })
	wantMetrics(t, f.metrics, map[string]float64{
		"concertina_job_round": 1, "concertina_job_step": 7, "concertina_job_connected_workers": 3,
		"concertina_rendezvous_sessions": 3,
	})
	a.Report(func(r *rendezvousv1.Report) {
		r.Snapshots = []*rendezvousv1.Snapshot{{Round: 1, Step: 7, Bytes: 5, Hash: make([]byte, 32)}}
	})
	f.eventually(t, "there is a snapshot", func(o rendezvous.Observation) bool { return o.Memory.Copies == 1 })
	wantMetrics(t, f.metrics, map[string]float64{"concertina_job_snapshot_step": 7, "concertina_job_snapshot_copies": 1})
	f.Release(digits, "")
	for _, agent := range []*rendezvoustest.Agent{a, b, c} {
		await(t, agent, func(s rendezvoustest.Snapshot) bool { return s.Over })
	}
	wantCode(t, f.converse(t, "token-a", first(f.pod("a"))), codes.NotFound, "not needed any more")
}

func wantMetrics(t *testing.T, registry *prometheus.Registry, want map[string]float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if value, ok := want[family.GetName()]; ok {
			delete(want, family.GetName())
			if got := family.GetMetric()[0].GetGauge().GetValue(); got != value {
				t.Errorf("%s is %v, want %v", family.GetName(), got, value)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("no metrics %v", want)
	}
}

func first(hello *rendezvousv1.Hello) *rendezvousv1.Report {
	return &rendezvousv1.Report{Hello: hello, Sequence: 1}
}

// A round is told to nobody before it is durable.
func TestNothingIsPublishedBeforeItIsDurable(t *testing.T) {
	f := serve(t, nil)
	f.Expect(digits, gangOf(1, "a"))
	f.eventually(t, "the term is taken", func(o rendezvous.Observation) bool { return !o.Adopting })
	hold := make(chan struct{})
	f.recorder.mu.Lock()
	f.recorder.hold = hold
	f.recorder.mu.Unlock()
	agent := f.agent(t, "a")
	await(t, agent, func(s rendezvoustest.Snapshot) bool { return s.Term == 1 })
	if s := agent.Snapshot(); s.Round != 0 || len(s.Worlds) != 0 {
		t.Fatalf("the agent knows of round %d, which is not durable", s.Round)
	}
	close(hold)
	await(t, agent, func(s rendezvoustest.Snapshot) bool { return s.Round == 1 })
}

// The sessions that must not be, each with the error that says why.
func TestWhoGetsNoSession(t *testing.T) {
	f := serve(t, nil)
	f.Expect(digits, gangOf(1, "a"))
	f.Expect(rendezvous.JobKey{Namespace: "team", Name: "other"}, gangOf(1, "b"))
	f.pod("a")
	f.pod("b")
	f.pod("z")
	f.tokens.issue("token-elsewhere", rendezvous.Identity{Namespace: "elsewhere", PodName: "a", PodUID: "uid-a", Expires: time.Now().Add(time.Hour)})
	with := func(change func(*rendezvousv1.Report)) *rendezvousv1.Report {
		report := first(f.pod("a"))
		change(report)
		return report
	}
	for _, tc := range []struct {
		name, token string
		reports     []*rendezvousv1.Report
		code        codes.Code
		says        string
	}{
		{"no token", "", []*rendezvousv1.Report{first(f.pod("a"))}, codes.Unauthenticated, "begins with no token"},
		{"an unknown token", "guess", []*rendezvousv1.Report{first(f.pod("a"))}, codes.Unauthenticated, "unknown token"},
		{"the token of another pod", "token-b", []*rendezvousv1.Report{first(f.pod("a"))}, codes.PermissionDenied, "token belongs to pod team/b"},
		{"the token of another namespace", "token-elsewhere", []*rendezvousv1.Report{first(f.pod("a"))}, codes.PermissionDenied, "token belongs to pod elsewhere/a"},
		{"a pod of another job", "token-b", []*rendezvousv1.Report{first(f.pod("b"))}, codes.PermissionDenied, "worker of job team/other"},
		{"a pod that is not expected", "token-c", []*rendezvousv1.Report{first(f.pod("c"))}, codes.Unavailable, "not expected in the gang yet"},
		{"a job nobody has spoken of", "token-z", []*rendezvousv1.Report{with(func(r *rendezvousv1.Report) { r.Hello.Job = "unknown"; r.Hello.PodUid = "uid-z"; r.Hello.PodName = "z" })}, codes.Unavailable, "team/unknown is not expected yet"},
		{"an expected pod that speaks for another job", "token-a", []*rendezvousv1.Report{with(func(r *rendezvousv1.Report) { r.Hello.Job = "unknown" })}, codes.PermissionDenied, "worker of job team/digits, not of job team/unknown"},
		{"a later attempt", "token-a", []*rendezvousv1.Report{with(func(r *rendezvousv1.Report) { r.Hello.Attempt = 2 })}, codes.Unavailable, "attempt 2 of the job is not expected yet"},
		{"no hello", "token-a", []*rendezvousv1.Report{{Sequence: 1}}, codes.InvalidArgument, "no hello"},
		{"another protocol", "token-a", []*rendezvousv1.Report{with(func(r *rendezvousv1.Report) { r.Hello.Protocol = 1 })}, codes.FailedPrecondition, "speaks protocol 1"},
		{"no address", "token-a", []*rendezvousv1.Report{with(func(r *rendezvousv1.Report) { r.Hello.Address = "worker-0.local" })}, codes.InvalidArgument, "not the IP address"},
		{"no port", "token-a", []*rendezvousv1.Report{with(func(r *rendezvousv1.Report) { r.Hello.MasterPort = 70000 })}, codes.InvalidArgument, "master_port"},
		{"a snapshot port out of range", "token-a", []*rendezvousv1.Report{with(func(r *rendezvousv1.Report) { r.Hello.SnapshotPort = 70000 })}, codes.InvalidArgument, "snapshot_port"},
		{"a short certificate", "token-a", []*rendezvousv1.Report{with(func(r *rendezvousv1.Report) {
			r.Hello.SnapshotPort = 5000
			r.Hello.SnapshotCertificate = make([]byte, 31)
		})}, codes.InvalidArgument, "snapshot_certificate has 31 bytes"},
		{"a long name", "token-a", []*rendezvousv1.Report{with(func(r *rendezvousv1.Report) { r.Hello.Job = strings.Repeat("x", 300) })}, codes.InvalidArgument, "job has 300 bytes"},
		{"a name that no object has", "token-a", []*rendezvousv1.Report{with(func(r *rendezvousv1.Report) { r.Hello.Job = "digits\x1b[31m\nok" })}, codes.InvalidArgument, `job "digits\x1b[31m\nok" has other characters`},
		{"sequence 0", "token-a", []*rendezvousv1.Report{with(func(r *rendezvousv1.Report) { r.Sequence = 0 })}, codes.InvalidArgument, "sequence 0"},
		{"a second hello", "token-a", []*rendezvousv1.Report{first(f.pod("a")), with(func(r *rendezvousv1.Report) { r.Sequence = 2 })}, codes.InvalidArgument, "only the first report"},
		{"an old sequence", "token-a", []*rendezvousv1.Report{first(f.pod("a")), {Sequence: 5}, {Sequence: 5}}, codes.InvalidArgument, "sequence 5 follows 5"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantCode(t, f.converse(t, tc.token, tc.reports...), tc.code, tc.says)
		})
	}
	t.Run("a job that is gone", func(t *testing.T) {
		gone := rendezvous.JobKey{Namespace: "team", Name: "gone"}
		hello := f.pod("e")
		hello.Job = "gone"
		f.Release(gone, "")
		wantCode(t, f.converse(t, "token-e", first(hello)), codes.NotFound, "not needed any more")
		f.Expect(gone, gangOf(1, "e"))
		f.Expect(gone, gangOf(3, "x"))
		f.Release(gone, "")
		f.Forget(gone, "")
		wantCode(t, f.converse(t, "token-e", first(hello)), codes.NotFound, "not needed any more")
		hello.Attempt = 4
		wantCode(t, f.converse(t, "token-e", first(hello)), codes.Unavailable, "not expected yet")
	})
	t.Run("the API server is away", func(t *testing.T) {
		f.tokens.mu.Lock()
		f.tokens.down = true
		f.tokens.mu.Unlock()
		wantCode(t, f.converse(t, "token-a", first(f.pod("a"))), codes.Unavailable, "could not be checked now")
	})
	f.eventually(t, "no session is left", func(o rendezvous.Observation) bool { return !o.Members["uid-a"].Connected })
}

func TestSilenceIsNoHello(t *testing.T) {
	f := serve(t, func(o *Options) { o.HelloTimeout = 300 * time.Millisecond })
	f.Expect(digits, gangOf(1, "a"))
	f.pod("a")
	wantCode(t, f.converse(t, "token-a"), codes.DeadlineExceeded, "no hello within 300ms")
}

// Reports that no agent sends.
// A snapshot of an agent that knows no hashes does not count: nobody could tell whether it is what came. The report does.
func TestASnapshotWithoutAHash(t *testing.T) {
	known := &rendezvousv1.Snapshot{Round: 1, Step: 4, Bytes: 8, Hash: bytes.Repeat([]byte{7}, 32)}
	read, refused := readReport(&rendezvousv1.Report{Round: 1, MembersDigest: strings.Repeat("a", 64),
		Snapshots: []*rendezvousv1.Snapshot{{Round: 1, Step: 5, Bytes: 8}, known}})
	if refused != nil || len(read.Snapshots) != 1 || !proto.Equal(snapshotMessage(&read.Snapshots[0]), known) {
		t.Errorf("%+v, %v", read.Snapshots, refused)
	}
}

func TestMalformedReports(t *testing.T) {
	f := serve(t, nil)
	f.Expect(digits, gangOf(1, "a"))
	many := func(n int) []*rendezvousv1.Process {
		processes := make([]*rendezvousv1.Process, n)
		for i := range processes {
			processes[i] = &rendezvousv1.Process{}
		}
		return processes
	}
	process := func(p *rendezvousv1.Process) *rendezvousv1.Report {
		return &rendezvousv1.Report{Processes: []*rendezvousv1.Process{p}}
	}
	metric := func(name string, value float64) *rendezvousv1.Report {
		return process(&rendezvousv1.Process{Metrics: []*rendezvousv1.Metric{{Name: name, Value: value}}})
	}
	for _, tc := range []struct {
		name   string
		report *rendezvousv1.Report
		says   string
	}{
		{"too many processes", &rendezvousv1.Report{Processes: many(65)}, "65 processes"},
		{"more processes than the worker has", &rendezvousv1.Report{Processes: many(2)}, "2 processes are reported of a worker that has 1"},
		{"a digest without a round", &rendezvousv1.Report{MembersDigest: strings.Repeat("a", 64)}, "round is 0"},
		{"a round without a digest", &rendezvousv1.Report{Round: 1}, "not 64 lower-case hex digits"},
		{"a rank out of range", &rendezvousv1.Report{Round: 1, MembersDigest: strings.Repeat("a", 64), WorkerRank: 10000}, "worker_rank is 10000"},
		{"a term out of range", &rendezvousv1.Report{Term: math.MaxUint64}, "out of range"},
		{"a term that cannot be", &rendezvousv1.Report{Term: 1 << 40}, "cannot be"},
		{"an unknown phase", process(&rendezvousv1.Process{Phase: 77}), "phase 77"},
		{"a step out of range", process(&rendezvousv1.Process{Done: math.MaxUint64}), "out of range"},
		{"an exit code out of range", process(&rendezvousv1.Process{Exit: &rendezvousv1.Exit{Code: 4096}}), "exit code 4096"},
		{"a long fault", process(&rendezvousv1.Process{Fault: &rendezvousv1.Fault{Message: strings.Repeat("x", 17<<10)}}), "the fault has 17408 bytes"},
		{"an unknown wait", process(&rendezvousv1.Process{Waiting: 42}), "waiting 42"},
		{"a barrier out of range", process(&rendezvousv1.Process{BarrierAttempt: math.MaxUint64}), "out of range"},
		{"a stop out of range", process(&rendezvousv1.Process{Stop: 1 << 63}), "out of range"},
		{"a step that was begun out of range", process(&rendezvousv1.Process{Entered: 1 << 63}), "out of range"},
		{"out of no world", &rendezvousv1.Report{Out: true}, "out is set"},
		{"too many answers", &rendezvousv1.Report{Probed: make([]*rendezvousv1.Probed, 9)}, "9 probes"},
		{"too many holders that were not reached", &rendezvousv1.Report{Unreached: make([]*rendezvousv1.Unreached, 33)}, "33 holders"},
		{"a holder without a certificate", &rendezvousv1.Report{Unreached: []*rendezvousv1.Unreached{{Error: "i/o timeout"}}}, "the certificate of a holder has 0 bytes"},
		{"a long word of a holder", &rendezvousv1.Report{Unreached: []*rendezvousv1.Unreached{
			{Certificate: make([]byte, 32), Error: strings.Repeat("x", 17<<10)}}}, "what is said of a holder has 17408 bytes"},
		{"too many snapshots", &rendezvousv1.Report{Snapshots: make([]*rendezvousv1.Snapshot, 257)}, "257 snapshots"},
		{"a part of no snapshot", &rendezvousv1.Report{Round: 1, MembersDigest: strings.Repeat("a", 64),
			Snapshots: []*rendezvousv1.Snapshot{{Round: 1, Part: "s4.4.0123456789abcdef"}}}, "a part of a snapshot is named"},
		{"a snapshot of a later round", &rendezvousv1.Report{Snapshots: []*rendezvousv1.Snapshot{{Round: 1}}}, "a snapshot of round 1"},
		{"half a hash", &rendezvousv1.Report{Round: 1, MembersDigest: strings.Repeat("a", 64),
			Snapshots: []*rendezvousv1.Snapshot{{Round: 1, Hash: make([]byte, 16)}}}, "the hash of a snapshot has 16 bytes"},
		{"a long snapshot error", &rendezvousv1.Report{SnapshotError: strings.Repeat("x", 17<<10)}, "snapshot_error has 17408 bytes"},
		{"NaN", metric("loss", math.NaN()), "must be finite"},
		{"infinity", metric("loss", math.Inf(-1)), "must be finite"},
		{"a metric without a name", metric("", 1), "metric name"},
		{"a metric with a bad name", metric("loss{job=\"x\"}", 1), "metric name"},
		{"a metric with a long name", metric(strings.Repeat("x", 33), 1), "metric name"},
		{"too many metrics", process(&rendezvousv1.Process{Metrics: make([]*rendezvousv1.Metric, 9)}), "9 metrics"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.report.Sequence = 2
			wantCode(t, f.converse(t, "token-a", first(f.pod("a")), tc.report), codes.InvalidArgument, tc.says)
		})
	}
	t.Run("oversized", func(t *testing.T) {
		report := process(&rendezvousv1.Process{Fault: &rendezvousv1.Fault{Message: strings.Repeat("x", 1<<20)}})
		wantCode(t, f.converse(t, "token-a", first(f.pod("a")), report), codes.ResourceExhausted, "it may have 65536")
	})
	// Nothing of it was believed.
	f.eventually(t, "no session is left", func(o rendezvous.Observation) bool { return !o.Members["uid-a"].Connected })
	if seen := f.Observe(digits).Members["uid-a"]; seen.Exited || seen.Fault != "" {
		t.Errorf("a refused report left %+v", seen)
	}
}

// What programs say is shown to people, in terminals too.
func TestWhatProgramsSayIsPlainText(t *testing.T) {
	read, refused := readReport(&rendezvousv1.Report{
		SnapshotError: "disk\x1b[2Jfull", Supplied: true, Unreached: []*rendezvousv1.Unreached{{Certificate: make([]byte, 32), Error: "\x1b[2Jtimeout"}},
		Processes: []*rendezvousv1.Process{{Fault: &rendezvousv1.Fault{Message: "Traceback\n\x1b]0;owned\x07\tValueError"}}},
	})
	if refused != nil || !read.Supplied || read.SnapshotError != "disk�[2Jfull" || read.Unreached[0].Why != "�[2Jtimeout" || read.Processes[0].Fault != "Traceback\n�]0;owned�\tValueError" {
		t.Errorf("%+v, %v", read, refused)
	}
}

func TestNewerSessionReplacesTheOlder(t *testing.T) {
	f := serve(t, nil)
	f.Expect(digits, gangOf(1, "a", "b"))
	hello := f.pod("a")
	old := f.open(t, "token-a")
	if err := old.Send(first(hello)); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Receive(); err != nil {
		t.Fatal(err)
	}
	newer := f.open(t, "token-a")
	if err := newer.Send(first(hello)); err != nil {
		t.Fatal(err)
	}
	if _, err := newer.Receive(); err != nil {
		t.Fatal(err)
	}
	var err error
	for err == nil {
		_, err = old.Receive()
	}
	wantCode(t, err, codes.Unavailable, "newer session")
	if err := newer.Send(&rendezvousv1.Report{Sequence: 2}); err != nil {
		t.Fatal(err)
	}
	for {
		directive, err := newer.Receive()
		if err != nil {
			t.Fatalf("the newer session ended too: %v", err)
		}
		if directive.GetSequence() == 2 {
			break
		}
	}
	if !f.Observe(digits).Members["uid-a"].Connected {
		t.Error("the end of the older session counts for the newer one")
	}
}

func TestSessionEndsWithItsToken(t *testing.T) {
	f := serve(t, nil)
	f.Expect(digits, gangOf(1, "a"))
	hello := f.pod("a")
	f.tokens.issue("short", rendezvous.Identity{Namespace: "team", PodName: "a", PodUID: "uid-a", Expires: time.Now().Add(300 * time.Millisecond)})
	wantCode(t, f.converse(t, "short", first(hello)), codes.Unavailable, "token of this session has expired")
	f.eventually(t, "the agent is gone", func(o rendezvous.Observation) bool { return !o.Members["uid-a"].Connected })
}

func TestIdleSessionEnds(t *testing.T) {
	f := serve(t, func(o *Options) { o.IdleTimeout = 200 * time.Millisecond })
	f.Expect(digits, gangOf(1, "a"))
	wantCode(t, f.converse(t, "token-a", first(f.pod("a"))), codes.DeadlineExceeded, "no report within 200ms of the last one")
	f.eventually(t, "the agent is gone", func(o rendezvous.Observation) bool { return !o.Members["uid-a"].Connected })
}

// Reports that come as fast as the network takes them are read at the rate of a few agents: whatever the
// machine's speed, those beyond the burst take their time.
func TestFloodIsThrottled(t *testing.T) {
	const beyond = 2 * maxReportRate
	f := serve(t, nil)
	f.Expect(digits, gangOf(1, "a"))
	began, hello := time.Now(), f.pod("a")
	stream := f.open(t, "token-a")
	if err := stream.Send(first(hello)); err != nil {
		t.Fatal(err)
	}
	var sender sync.WaitGroup
	defer sender.Wait()
	sender.Go(func() {
		for sequence := uint64(2); sequence <= 1+reportBurst+beyond; sequence++ {
			if err := stream.Send(&rendezvousv1.Report{Sequence: sequence}); err != nil {
				t.Errorf("report %d: %v", sequence, err)
				return
			}
		}
	})
	for last := uint64(0); last < 1+reportBurst+beyond; {
		directive, err := stream.Receive()
		if err != nil {
			t.Fatalf("after report %d: %v", last, err)
		}
		last = directive.GetSequence()
	}
	// The limiter is filled once the first report is there, so the least time counts from before that.
	if least, elapsed := time.Second*beyond/maxReportRate, time.Since(began); elapsed < least {
		t.Errorf("%d reports were read within %s, it must take at least %s", 1+reportBurst+beyond, elapsed, least)
	}
}

// Who does not name the protocol in the handshake is refused there.
func TestOtherProtocolsAreRefused(t *testing.T) {
	f := serve(t, nil)
	for _, protocols := range [][]string{{"h2", "http/1.1"}, {"http/1.1"}, {"concertina-rendezvous/1"}} {
		conn, err := tls.Dial("tcp", f.address, &tls.Config{RootCAs: f.roots, NextProtos: protocols, MinVersion: tls.VersionTLS13})
		if err == nil {
			_ = conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "no application protocol") {
			t.Errorf("%q: %v", protocols, err)
		}
	}
	// Who names none may have ended the handshake, and is not listened to.
	conn, err := tls.Dial("tcp", f.address, &tls.Config{RootCAs: f.roots, MinVersion: tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if answer, err := io.ReadAll(conn); err != nil || len(answer) > 0 {
		t.Errorf("who names no protocol is answered with %q, %v", answer, err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: f.roots}}}
	response, err := client.Get("https://" + f.address)
	if err == nil {
		_ = response.Body.Close()
		t.Errorf("HTTP is answered with %s", response.Status)
	}
}

func TestDeposedLeaderStopsForThatJob(t *testing.T) {
	f := serve(t, nil)
	f.Expect(digits, gangOf(1, "a", "b"))
	a := f.agent(t, "a")
	await(t, a, func(s rendezvoustest.Snapshot) bool { return s.Term == 1 })
	f.recorder.set(rendezvous.Record{Term: 2})
	f.agent(t, "b")
	f.eventually(t, "the leader knows", func(o rendezvous.Observation) bool { return o.Deposed })
	s := await(t, a, func(s rendezvoustest.Snapshot) bool { return s.Last != nil })
	wantCode(t, s.Last, codes.Unavailable, "another operator leads")
	if len(s.Worlds) != 0 {
		t.Errorf("a deposed leader has published %v", s.Worlds)
	}
	f.Forget(digits, "")
	f.Expect(digits, gangOf(2, "c"))
	if !f.Observe(digits).Deposed {
		t.Error("the leader leads again")
	}
	anew := gangOf(1, "d")
	anew.JobUID = "another job of that name"
	f.recorder.set(rendezvous.Record{})
	f.Expect(digits, anew)
	await(t, f.agent(t, "d"), func(s rendezvoustest.Snapshot) bool { return s.Round == 1 })
}

// A leader that is replaced while a world trains: the new one adopts it, and no agent notices more
// than a new session.
func TestNewLeaderAdopts(t *testing.T) {
	old := serve(t, nil)
	old.Expect(digits, gangOf(1, "a", "b"))
	a, b := old.agent(t, "a"), old.agent(t, "b")
	for _, agent := range []*rendezvoustest.Agent{a, b} {
		await(t, agent, func(s rendezvoustest.Snapshot) bool { return s.Round == 1 })
		agent.Step(5)
	}
	address := old.address
	old.stop()
	renewed := serve(t, func(o *Options) {
		_ = o.Listener.Close()
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		o.Listener, o.TLS, o.Authenticator, o.Recorder = listener, old.options.TLS, old.options.Authenticator, old.options.Recorder
	})
	renewed.Expect(digits, gangOf(1, "a", "b"))
	renewed.eventually(t, "both are back", func(o rendezvous.Observation) bool {
		return o.Round == 1 && o.Members["uid-a"].InWorld && o.Members["uid-b"].InWorld && o.Progress.Step == 5
	})
	for _, agent := range []*rendezvoustest.Agent{a, b} {
		if s := await(t, agent, func(s rendezvoustest.Snapshot) bool { return s.Term == 2 }); s.Round != 1 || len(s.Worlds) != 1 {
			t.Errorf("the agent was told of %v", s.Worlds)
		}
	}
	if round := old.recorder.records[digits].Round; round != 1 {
		t.Errorf("the record is at round %d", round)
	}
}

// Changed names each job that has news, and does not block the rendezvous while nobody listens.
func TestChanged(t *testing.T) {
	f := serve(t, nil)
	for i := range 50 {
		f.Expect(rendezvous.JobKey{Namespace: "team", Name: fmt.Sprint("job-", i)}, gangOf(1, fmt.Sprint("pod-", i)))
	}
	seen := map[rendezvous.JobKey]bool{}
	deadline := time.After(20 * time.Second)
	for len(seen) < 50 {
		select {
		case key := <-f.Changed():
			seen[key] = true
		case <-deadline:
			t.Fatalf("only %d of 50 jobs were named", len(seen))
		}
	}
}

// A member that says something else all the time makes its own job be looked at so often and no more, and the
// last of it is heard of.
func TestChangesOfOneJobArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(Options{}, newServerMetrics())
		ctx, cancel := context.WithCancel(t.Context())
		var delivering sync.WaitGroup
		delivering.Go(func() { r.deliverChanges(ctx) })
		told := map[rendezvous.JobKey]int{}
		busy, quiet := rendezvous.JobKey{Namespace: "team", Name: "busy"}, rendezvous.JobKey{Namespace: "team", Name: "quiet"}
		const seconds = 10
		drain := func() {
			for {
				synctest.Wait()
				select {
				case key := <-r.changed:
					told[key]++
				default:
					return
				}
			}
		}
		for range seconds * 100 {
			r.changes.add(busy)
			drain()
			time.Sleep(10 * time.Millisecond)
		}
		r.changes.add(quiet)
		drain()
		if most := changeBurst + changeRate*seconds; told[busy] > most || told[busy] < most-1 || told[quiet] != 1 {
			t.Errorf("told of the busy job %d times, want %d, of the other %d times", told[busy], most, told[quiet])
		}
		before := told[busy]
		r.changes.add(busy)
		time.Sleep(time.Second / changeRate)
		if drain(); told[busy] != before+1 {
			t.Error("the last change is never told")
		}
		cancel()
		delivering.Wait()
		r.cancel()
	})
}

func TestStartSaysWhatIsWrong(t *testing.T) {
	if err := NewServer(Options{}).Start(t.Context()); err == nil || !strings.Contains(err.Error(), "needs TLS") {
		t.Errorf("error %v", err)
	}
	f := serve(t, nil)
	options := f.options
	options.Listener, options.Address, options.Registerer = nil, f.address, nil
	if err := NewServer(options).Start(t.Context()); err == nil || !strings.Contains(err.Error(), "listen for agents") {
		t.Errorf("error %v", err)
	}
}
