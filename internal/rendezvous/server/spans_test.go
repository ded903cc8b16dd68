package server

import (
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvoustest"
	"github.com/concertina-dev/concertina/internal/tracing"
)

// collected is a collector of traces, by the OpenTelemetry protocol.
type collected struct {
	mu    sync.Mutex
	spans []*tracev1.Span
	about string
	wrong error
}

// collect has the environment name a collector, and returns it with what sends to it.
func collect(t *testing.T) (*collected, *tracing.Traces) {
	t.Helper()
	c := &collected{}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	traces, err := tracing.Open(t.Context(), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	return c, traces
}

// ServeHTTP implements http.Handler.
func (c *collected) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var request collector.ExportTraceServiceRequest
	text, err := io.ReadAll(r.Body)
	if err == nil {
		err = proto.Unmarshal(text, &request)
	}
	if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		c.wrong = err
		http.Error(w, "no traces", http.StatusBadRequest)
		return
	}
	for _, of := range request.GetResourceSpans() {
		for _, attribute := range of.GetResource().GetAttributes() {
			if attribute.GetKey() == "service.name" {
				c.about = attribute.GetValue().GetStringValue()
			}
		}
		for _, scope := range of.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
	answer, _ := proto.Marshal(&collector.ExportTraceServiceResponse{})
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(answer)
}

// root is the first span of a name that has no parent; nil for none.
func (c *collected) root(name string) *tracev1.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.GetName() == name && len(s.GetParentSpanId()) == 0 {
			return s
		}
	}
	return nil
}

// under are the spans whose parent a span is, in the order of their begin.
func (c *collected) under(parent *tracev1.Span) []*tracev1.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []*tracev1.Span
	for _, s := range c.spans {
		if string(s.GetTraceId()) == string(parent.GetTraceId()) && string(s.GetParentSpanId()) == string(parent.GetSpanId()) {
			found = append(found, s)
		}
	}
	slices.SortStableFunc(found, func(a, b *tracev1.Span) int { return int(a.GetStartTimeUnixNano()) - int(b.GetStartTimeUnixNano()) })
	return found
}

// attributeOf is an attribute of a span, a text or a number, as text; empty for none.
func attributeOf(s *tracev1.Span, key string) string {
	for _, attribute := range s.GetAttributes() {
		if value := attribute.GetValue(); attribute.GetKey() == key {
			if text := value.GetStringValue(); text != "" {
				return text
			}
			return strconv.FormatInt(value.GetIntValue(), 10)
		}
	}
	return ""
}

// A change has one trace, from the decision to the first step of the slowest, whose id follows from its round.
func TestTraceOfAChange(t *testing.T) {
	c, traces := collect(t)
	f := serve(t, func(o *Options) { o.Tracer = traces.Tracer() })
	_, _, leaver := grow(t, f)
	gang := gangOf(1, "a", "b", "c")
	gang.Minimum, gang.Target = 1, 2
	f.Expect(digits, gang)
	leaver.Exit(9)
	f.eventually(t, "the recovery is told", func(o rendezvous.Observation) bool { return len(o.Changes) == 3 })
	f.stop()
	if err := traces.Close(); err != nil || c.wrong != nil {
		t.Fatal(err, c.wrong)
	}
	if c.about != "concertina-operator" {
		t.Errorf("the spans are those of %q", c.about)
	}

	uid := f.recorder.records[digits].JobUID
	start, resize, recovery := c.root("start"), c.root("resize"), c.root("recovery")
	for round, root := range map[uint64]*tracev1.Span{1: start, 2: resize, 3: recovery} {
		if root == nil {
			t.Fatalf("round %d has no trace", round)
		}
		ids := tracing.OfRound(uid, round)
		if hex.EncodeToString(root.GetTraceId()) != ids.TraceID().String() || hex.EncodeToString(root.GetSpanId()) != ids.SpanID().String() {
			t.Errorf("the trace of round %d has another id", round)
		}
		if attributeOf(root, "concertina.outcome") != "done" || attributeOf(root, "concertina.job.name") != "digits" {
			t.Errorf("the span of round %d has %v", round, root.GetAttributes())
		}
		if round > 1 {
			if l := root.GetLinks(); len(l) != 1 || hex.EncodeToString(l[0].GetTraceId()) != tracing.OfRound(uid, round-1).TraceID().String() {
				t.Errorf("the span of round %d links to %v", round, l)
			}
		}
		for _, s := range c.under(root) {
			if s.GetEndTimeUnixNano() < s.GetStartTimeUnixNano() || s.GetStartTimeUnixNano() < root.GetStartTimeUnixNano() || s.GetEndTimeUnixNano() > root.GetEndTimeUnixNano() {
				t.Errorf("span %s of round %d lies outside of its change", s.GetName(), round)
			}
		}
	}
	for root, want := range map[*tracev1.Span]string{
		start: "record form", resize: "barrier snapshot record form",
	} {
		var names []string
		for _, s := range c.under(root) {
			names = append(names, s.GetName())
			if below := c.under(s); s.GetName() == "form" && (len(below) != 1 || below[0].GetName() != "publish") {
				t.Errorf("form of the %s has %v", root.GetName(), below)
			}
		}
		// Where the last to enter says at once that it has begun its first step, nobody was waited for in between.
		if got := strings.TrimSuffix(strings.Join(names, " "), " step"); got != want {
			t.Errorf("the %s was in the phases %s, want %s and perhaps step", root.GetName(), got, want)
		}
	}
	if got := attributeOf(resize, "concertina.reason"); got != string(rendezvous.ReasonCapacityAvailable) {
		t.Errorf("the reason of the resize is %q", got)
	}
	if got := attributeOf(resize, "concertina.why"); !strings.Contains(got, "joined by c") {
		t.Errorf("the resize says %q", got)
	}
	events := map[string]bool{}
	for _, event := range resize.GetEvents() {
		events[event.GetName()] = true
	}
	if !events["resizing"] || !events["parked"] || !events["published"] {
		t.Errorf("the resize has the events %v", events)
	}
}

// What an operator is in the middle of when it is told to end is told all the same, with as far as it had come.
func TestTraceOfWhatIsHandedOver(t *testing.T) {
	c, traces := collect(t)
	f := serve(t, func(o *Options) { o.Tracer = traces.Tracer() })
	f.Expect(digits, gangOf(1, "a", "b"))
	idle := func(c *rendezvoustest.Config) { c.StepEvery = 0 }
	f.elastic(t, "a", idle)
	f.elastic(t, "b", idle)
	f.eventually(t, "the world is formed", func(o rendezvous.Observation) bool {
		return o.Members["uid-a"].InWorld && o.Members["uid-b"].InWorld
	})
	f.stop()
	if err := traces.Close(); err != nil {
		t.Fatal(err)
	}
	root := c.root("start")
	if root == nil || attributeOf(root, "concertina.outcome") != string(outcomeHandedOver) || attributeOf(root, "concertina.round") != "1" {
		t.Fatalf("the start is told as %v", root)
	}
	below := c.under(root)
	if last := below[len(below)-1]; last.GetName() != "step" || last.GetEndTimeUnixNano() != root.GetEndTimeUnixNano() {
		t.Errorf("it ends in %v", last)
	}
	if n := f.counts(t, "concertina_changes_total"); len(n) > 0 {
		t.Errorf("the metrics of a server that has stopped are still registered: %v", n)
	}
}

// A planned change that comes to nothing is an error, with the reason in words.
func TestTraceOfAChangeThatIsCalledOff(t *testing.T) {
	c, traces := collect(t)
	f := serve(t, func(o *Options) { o.Tracer = traces.Tracer() })
	gang := gangOf(1, "a", "b")
	gang.Minimum, gang.Target, gang.BarrierTimeout = 1, 3, 20*time.Second
	f.Expect(digits, gang)
	full := func(c *rendezvoustest.Config) { c.LastStep = 1 << 40 }
	a, b := f.elastic(t, "a", full), f.elastic(t, "b", full)
	f.eventually(t, "the world trains", func(o rendezvous.Observation) bool { return o.Progress.Step > 3 && o.Elastic && !o.Untold })
	a.FailSnapshots("no room")
	b.FailSnapshots("no room")
	gang = gangOf(1, "a", "b", "c")
	gang.Minimum, gang.Target, gang.BarrierTimeout = 1, 3, 20*time.Second
	f.Expect(digits, gang)
	f.elastic(t, "c", full)
	f.eventually(t, "it is called off", func(o rendezvous.Observation) bool {
		return o.Phase == rendezvous.PhaseTraining && strings.Contains(o.Why, "called off")
	})
	f.stop()
	if err := traces.Close(); err != nil {
		t.Fatal(err)
	}
	root := c.root("resize")
	if root == nil || attributeOf(root, "concertina.outcome") != string(outcomeCalledOff) || root.GetStatus().GetCode() != tracev1.Status_STATUS_CODE_ERROR {
		t.Fatalf("the change is told as %v", root)
	}
	if !slices.ContainsFunc(root.GetEvents(), func(e *tracev1.Span_Event) bool {
		return e.GetName() == "lifted" && strings.Contains(e.GetAttributes()[0].GetValue().GetStringValue(), "no room")
	}) {
		t.Errorf("it does not say why: %v", root.GetEvents())
	}
}

// A leader that takes a world over links to the change that made it, though another leader made that.
func TestTraceOfATakeover(t *testing.T) {
	old := serve(t, nil)
	old.Expect(digits, gangOf(1, "a", "b"))
	a, b := old.agent(t, "a"), old.agent(t, "b")
	for _, agent := range []*rendezvoustest.Agent{a, b} {
		await(t, agent, func(s rendezvoustest.Snapshot) bool { return s.Round == 1 })
		agent.Step(5)
	}
	address := old.address
	old.stop()
	c, traces := collect(t)
	renewed := serve(t, func(o *Options) {
		_ = o.Listener.Close()
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		o.Listener, o.TLS, o.Authenticator, o.Recorder = listener, old.options.TLS, old.options.Authenticator, old.options.Recorder
		o.Tracer = traces.Tracer()
	})
	gang := gangOf(1, "a", "b")
	gang.Durable = old.recorder.records[digits]
	renewed.Expect(digits, gang)
	renewed.eventually(t, "both are back", func(o rendezvous.Observation) bool {
		return o.Members["uid-a"].InWorld && o.Members["uid-b"].InWorld && !o.Adopting
	})
	renewed.stop()
	if err := traces.Close(); err != nil {
		t.Fatal(err)
	}
	root := c.root("takeover")
	if root == nil {
		t.Fatal("the takeover has no trace")
	}
	made := tracing.OfRound(gang.Durable.JobUID, 1)
	if l := root.GetLinks(); len(l) != 1 || hex.EncodeToString(l[0].GetSpanId()) != made.SpanID().String() {
		t.Errorf("it links to %v", l)
	}
	var names []string
	for _, s := range c.under(root) {
		names = append(names, s.GetName())
	}
	if got := strings.Join(names, " "); got != "term adopt" || attributeOf(root, "concertina.reason") != "TakenOver" {
		t.Errorf("it was in the phases %s, with %v", got, root.GetAttributes())
	}
}
