package tracing

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Without a collector there is nothing: no exporter, no goroutine, no tracer.
func TestOffUnlessACollectorIsNamed(t *testing.T) {
	for name, environment := range map[string]map[string]string{
		"nothing is said":  {},
		"no exporter":      {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_TRACES_EXPORTER": "none"},
		"it is turned off": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_SDK_DISABLED": "true"},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range environment {
				t.Setenv(key, value)
			}
			traces, err := Open(context.Background(), logr.Discard())
			if traces != nil || err != nil || traces.Tracer() != nil || traces.Close() != nil {
				t.Errorf("there are traces: %v, %v", traces, err)
			}
		})
	}
}

func TestOtherProtocolsAreRefused(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:4317")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	if _, err := Open(context.Background(), logr.Discard()); err == nil || !strings.Contains(err.Error(), "http/protobuf only") {
		t.Errorf("grpc is answered with %v", err)
	}
}

// Whoever knows a record finds its trace, with the tools of any shell.
func TestIDsFollowFromTheRecord(t *testing.T) {
	sum := sha256.Sum256([]byte("0f8fad5b-d9cb-469f-a165-70867728950e/7"))
	ids := OfRound("0f8fad5b-d9cb-469f-a165-70867728950e", 7)
	if got := hex.EncodeToString(sum[:16]); ids.TraceID().String() != got {
		t.Errorf("the trace is %s, want %s", ids.TraceID(), got)
	}
	ctx := WithRoot(context.Background(), ids)
	if traceID, spanID := (generator{}).NewIDs(ctx); traceID != ids.TraceID() || spanID != ids.SpanID() {
		t.Error("the root has other ids")
	}
	first, _ := (generator{}).NewIDs(context.Background())
	if second, _ := (generator{}).NewIDs(context.Background()); first == second || !first.IsValid() {
		t.Errorf("two traces have the ids %s and %s", first, second)
	}
}
