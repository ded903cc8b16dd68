package server

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/tracing"
)

// trace makes the spans of an episode that is over. Only then is it known which round it led to, and by that the
// trace is found: so an episode that an operator dies in has no spans of that operator's. It does not wait.
func (j *job) trace(e *episode) {
	tracer := j.registry.options.Tracer
	if tracer == nil {
		return
	}
	ctx := context.Background()
	if e.published() {
		ctx = tracing.WithRoot(ctx, tracing.OfRound(j.uid, e.round))
	}
	ctx, root := tracer.Start(ctx, string(e.kind), trace.WithNewRoot(), trace.WithTimestamp(e.begun),
		trace.WithAttributes(j.attributes(e)...), trace.WithLinks(j.links(e)...))
	for _, r := range e.remarks {
		root.AddEvent(r.kind, trace.WithTimestamp(r.at), trace.WithAttributes(attribute.String("text", tracing.Plain(r.text))))
	}
	if e.outcome == outcomeCalledOff || e.outcome == outcomeLeft {
		root.SetStatus(otelcodes.Error, string(e.outcome))
	}
	for _, p := range e.parts {
		inside, span := tracer.Start(ctx, string(p.stage), trace.WithTimestamp(p.begun))
		if sent, ok := e.publishing(); ok && p.stage == rendezvous.StageForm && p.begun.Equal(sent.begun) {
			_, publish := tracer.Start(inside, phasePublish, trace.WithTimestamp(sent.begun))
			publish.End(trace.WithTimestamp(sent.ended))
		}
		span.End(trace.WithTimestamp(p.ended))
	}
	root.End(trace.WithTimestamp(e.ended))
}

// links lead to the change that made the world that is left, or that was found. An earlier leader may have made it:
// its ids follow from the record.
func (j *job) links(e *episode) []trace.Link {
	before := e.left
	if e.kind == kindTakeover {
		before = e.round
	}
	if before == 0 {
		return nil
	}
	return []trace.Link{{SpanContext: tracing.OfRound(j.uid, before)}}
}

func (j *job) attributes(e *episode) []attribute.KeyValue {
	said := []attribute.KeyValue{
		attribute.String("k8s.namespace.name", j.key.Namespace),
		attribute.String("concertina.job.name", j.key.Name),
		attribute.String("concertina.job.uid", j.uid),
		attribute.String("concertina.reason", reasonLabel(e.reason())),
		attribute.String("concertina.outcome", string(e.outcome)),
		attribute.Int("concertina.workers.from", int(e.underway.From)),
		attribute.Int("concertina.workers.to", int(e.underway.To)),
	}
	text := func(key, value string) {
		if value != "" {
			said = append(said, attribute.String(key, tracing.Plain(value)))
		}
	}
	number := func(key string, value uint64) {
		if value > 0 {
			said = append(said, attribute.Int64(key, int64(value)))
		}
	}
	text("concertina.why", e.underway.Why)
	number("concertina.round", e.round)
	number("concertina.round.left", e.left)
	number("concertina.barrier.attempt", e.barrier)
	if e.told.Begun {
		said = append(said,
			attribute.Float64("concertina.pause_seconds", e.told.Pause.Seconds()),
			attribute.Int64("concertina.steps_lost", int64(min(e.told.StepsLost, rendezvous.MaxCount))))
	}
	return said
}
