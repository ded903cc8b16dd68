package server

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/link"

	"github.com/go-logr/logr"
	"google.golang.org/protobuf/proto"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// discarding makes everything durable at once.
type discarding struct{}

func (discarding) Record(_ context.Context, _ rendezvous.JobKey, _, next rendezvous.Record) (rendezvous.Record, error) {
	return next, nil
}

// FuzzReport plays a worker that says whatever it likes, first as its hello and then as a report, to a gang that
// trains with it. Nothing of it may harm the operator, and what is sent to the others stays within bounds.
func FuzzReport(f *testing.F) {
	seed := func(messages ...*rendezvousv1.Report) {
		var texts [2][]byte
		for i, message := range messages {
			text, err := proto.Marshal(message)
			if err != nil {
				f.Fatal(err)
			}
			texts[i] = text
		}
		f.Add(texts[0], texts[1])
	}
	hello := &rendezvousv1.Hello{
		Protocol: 2, Namespace: "team", Job: "digits", Attempt: 1, PodName: "a", PodUid: "uid-a", Address: "10.0.0.1",
		MasterPort: 4000, SnapshotPort: 5000, SnapshotCertificate: make([]byte, 32),
	}
	digest := rendezvous.MembersDigest([]string{"uid-a", "uid-b"})
	world := &rendezvousv1.Report{
		Sequence: 2, Term: 1, Round: 1, MembersDigest: digest, Snapshots: []*rendezvousv1.Snapshot{{Round: 1, Step: 5, Bytes: 8, Hash: make([]byte, 32)}},
		Probed: []*rendezvousv1.Probed{{Number: 1, Reached: true}}, StepNanos: 1 << 60,
		Unreached: []*rendezvousv1.Unreached{{Certificate: make([]byte, 32), Error: "i/o timeout"}},
		Processes: []*rendezvousv1.Process{{
			Phase: rendezvousv1.Phase_PHASE_STEP, Entered: 6, Done: 5, LastStep: 100, Samples: 50, Elastic: true,
			Metrics: []*rendezvousv1.Metric{{Name: "loss", Value: 0.5}},
		}},
	}
	seed(first(hello), world)
	failed := proto.CloneOf(world)
	failed.Processes[0].Fault = &rendezvousv1.Fault{Step: 6, Message: "Traceback\nValueError: \x1b[2J"}
	failed.Processes[0].Waiting, failed.Out = rendezvousv1.Waiting_WAITING_FAULT, true
	seed(first(hello), failed)
	ended := proto.CloneOf(world)
	ended.Processes[0].Exit = &rendezvousv1.Exit{Code: 1}
	seed(first(hello), ended)
	seed(first(hello), &rendezvousv1.Report{Sequence: 2, Term: 1 << 50, Standby: true, SnapshotError: "full"})
	parked := proto.CloneOf(world)
	parked.Processes[0].Waiting, parked.Processes[0].BarrierAttempt, parked.Processes[0].Stop = rendezvousv1.Waiting_WAITING_PARKED, 1, 1<<62
	seed(first(hello), parked)
	f.Fuzz(func(t *testing.T, helloText, reportText []byte) {
		if len(helloText) > link.MaxMessage || len(reportText) > link.MaxMessage {
			t.Skip("longer messages are not read")
		}
		introduction, report := &rendezvousv1.Report{}, &rendezvousv1.Report{}
		if proto.Unmarshal(helloText, introduction) != nil {
			return
		}
		if proto.Unmarshal(reportText, report) != nil {
			report = &rendezvousv1.Report{}
		}
		listenTo(t, introduction, report)
	})
}

// listenTo has a world of two hear one of them.
func listenTo(t *testing.T, introduction, message *rendezvousv1.Report) {
	r := newRegistry(Options{Recorder: discarding{}, Logger: logr.Discard()}.withDefaults(), newServerMetrics())
	defer func() {
		r.shutdown()
		r.writes.Wait()
	}()
	gang := gangOf(1, "a", "b")
	gang.Minimum, gang.Target = 1, 2
	gang.Addresses = map[string][]netip.Addr{"uid-a": {netip.MustParseAddr("10.0.0.1")}}
	r.expect(digits, gang)
	j := r.jobs[digits]
	r.writes.Wait()
	enter := func(uid string, message *rendezvousv1.Report) *session {
		h, refused := readHello(message)
		if refused != nil {
			return nil
		}
		first, refused := readReport(message)
		if refused != nil {
			return nil
		}
		if found, refused := r.find(&h); refused != nil || found != j || h.podUID != uid {
			return nil
		}
		s := mute(uid, j)
		s.says = h.address
		if j.join(s, &h, first) != nil {
			return nil
		}
		r.writes.Wait()
		return s
	}
	other := enter("uid-b", &rendezvousv1.Report{Sequence: 1, Standby: true, Hello: &rendezvousv1.Hello{
		Protocol: 2, Namespace: "team", Job: "digits", Attempt: 1, PodName: "b", PodUid: "uid-b", Address: "10.0.0.2", MasterPort: 4000,
	}})
	if other == nil {
		t.Fatal("the other worker is refused")
	}
	if s := enter("uid-a", introduction); s != nil {
		if read, refused := readReport(message); refused == nil {
			_ = j.hear(s, 2, read)
			r.writes.Wait()
		}
		within(t, j, s)
		j.leave(s)
	}
	within(t, j, other)
	j.step(rendezvous.TimePassed{})
	r.writes.Wait()
	shown(t, j.observe(r.now()))
	j.leave(other)
}

// within fails when an agent could not read what it is sent.
func within(t *testing.T, j *job, s *session) {
	t.Helper()
	d, ok := j.directive(s)
	if !ok {
		return
	}
	if n := proto.Size(directiveMessage(&d, 1)); n > link.MaxMessage {
		t.Errorf("a directive has %d bytes", n)
	}
}

// shown fails when something that people are shown is no plain text, or too much of it.
func shown(t *testing.T, observed rendezvous.Observation) {
	t.Helper()
	texts := []string{observed.Why, observed.Fatal, observed.Missed}
	for _, member := range observed.Members {
		texts = append(texts, member.Fault)
	}
	for i := range observed.Losses {
		texts = append(texts, observed.Losses[i].Message)
	}
	for i := range observed.Changes {
		texts = append(texts, observed.Changes[i].Message)
	}
	for _, text := range texts {
		if len(text) > 4*maxFaultBytes || !utf8.ValidString(text) || strings.ContainsAny(text, "\x00\x07\x1b\u202e") {
			t.Errorf("%d bytes are shown: %.200q", len(text), text)
		}
	}
}
