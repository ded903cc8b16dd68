// Package tracing sends traces to a collector, by the OpenTelemetry protocol, when the environment names one.
//
// The span of a change that leads to a round has ids that follow from the job and the round (OfRound). So whoever
// knows a record finds the trace, and a leader links to the spans of the one before it without having heard of them.
package tracing

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	// serviceName is what traces are found by, unless OTEL_SERVICE_NAME says otherwise.
	serviceName = "concertina-operator"
	// scope names the part of the operator that makes the spans.
	scope = "github.com/concertina-dev/concertina/internal/rendezvous"
	// maxText bounds each text of a span in characters, unless OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT does.
	maxText = 1024
	// closeTimeout bounds how long the last spans may take to be sent.
	closeTimeout = 3 * time.Second
	// protocol is the one that is spoken.
	protocol = "http/protobuf"
)

// Traces send what their Tracer is given. A nil Traces sends nothing.
type Traces struct{ provider *sdktrace.TracerProvider }

// wanted says whether the environment names a collector.
func wanted() bool {
	disabled, _ := strconv.ParseBool(os.Getenv("OTEL_SDK_DISABLED"))
	named := os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
	return named && !disabled && os.Getenv("OTEL_TRACES_EXPORTER") != "none"
}

// Open returns what sends to the collector of the standard variables OTEL_EXPORTER_OTLP_*; nil when they name none.
// It does not ask the collector for anything yet. Errors: variables that cannot be.
func Open(ctx context.Context, logger logr.Logger) (*Traces, error) {
	if !wanted() {
		return nil, nil
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if said := os.Getenv(name); said != "" && said != protocol {
			return nil, fmt.Errorf("%s is %q: traces are sent by %s only (port 4318 of most collectors)", name, said, protocol)
		}
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("make an exporter of traces: %w", err)
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", serviceName)),
		resource.WithTelemetrySDK(), resource.WithFromEnv()) // the last one wins
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read what the environment says of this service: %w", err), exporter.Shutdown(ctx))
	}
	limits := sdktrace.NewSpanLimits()
	if limits.AttributeValueLengthLimit < 0 {
		limits.AttributeValueLengthLimit = maxText
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { logger.Info("traces could not be sent", "cause", err.Error()) }))
	return &Traces{sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter), sdktrace.WithResource(about), sdktrace.WithRawSpanLimits(limits),
		sdktrace.WithIDGenerator(generator{}),
	)}, nil
}

// Tracer makes spans; nil for none.
func (t *Traces) Tracer() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer(scope)
}

// Close sends what is left, and nothing after that.
func (t *Traces) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last traces: %w", err)
	}
	return nil
}

// OfRound are the ids of the change that led to a round of a job: the trace's are the first 16 bytes of the SHA-256
// of "UID/ROUND", the span's the next 8.
func OfRound(jobUID string, round uint64) trace.SpanContext {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", jobUID, round))
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID(sum[:16]), SpanID: trace.SpanID(sum[16:24]), TraceFlags: trace.FlagsSampled, Remote: true,
	})
}

type rootKey struct{}

// WithRoot has the next root that is begun in the context take these ids.
func WithRoot(ctx context.Context, ids trace.SpanContext) context.Context {
	return context.WithValue(ctx, rootKey{}, ids)
}

// generator makes ids, and takes those of WithRoot for a root.
type generator struct{}

// NewIDs implements sdktrace.IDGenerator.
func (g generator) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if given, ok := ctx.Value(rootKey{}).(trace.SpanContext); ok {
		return given.TraceID(), given.SpanID()
	}
	var id trace.TraceID
	_, _ = rand.Read(id[:]) // never fails
	return id, g.NewSpanID(ctx, id)
}

// NewSpanID implements sdktrace.IDGenerator.
func (generator) NewSpanID(context.Context, trace.TraceID) trace.SpanID {
	var id trace.SpanID
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// Plain is a text that a collector takes: what is not UTF-8 is replaced.
func Plain(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
