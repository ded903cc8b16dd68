package agent

import (
	"context"
	"math"
	"time"

	"connectrpc.com/connect"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// The methods in this file are the agent as its session sees it.

// Hello introduces the agent.
func (a *agent) Hello() *rendezvousv1.Hello {
	return &rendezvousv1.Hello{
		Protocol:   Protocol,
		Namespace:  a.config.Namespace,
		Job:        a.config.Job,
		Attempt:    int32(a.config.Attempt),
		PodName:    a.config.PodName,
		PodUid:     a.config.PodUID,
		Address:    a.config.PodIP,
		MasterPort: uint32(a.port.Number()),
	}
}

// State is the whole state of the agent.
func (a *agent) State() *rendezvousv1.Report {
	a.mu.Lock()
	standing := a.standing
	a.mu.Unlock()
	return report(a.config, standing, a.server.States())
}

// Hear gives a directive to the loop and returns whether it was obeyed.
func (a *agent) Hear(ctx context.Context, d *rendezvousv1.Directive) bool {
	obeyed := make(chan bool, 1)
	event := lifecycle.Heard{Directive: directive(d)}
	select {
	case a.events <- envelope{event: event, obeyed: obeyed}:
		return <-obeyed
	case <-a.leaving:
		return true
	case <-ctx.Done():
		return true
	}
}

// Gone tells the loop that the operator knows no such job.
func (a *agent) Gone(context.Context) { a.send(lifecycle.Gone{}) }

// repeatAfter is how long the same trouble with the operator is not mentioned again.
const repeatAfter = time.Minute

// Lost mentions a session that has ended, unless the same was said a moment ago.
func (a *agent) Lost(err error) {
	code := connect.CodeOf(err)
	now := time.Now()
	if a.trouble.code == code && now.Sub(a.trouble.since) < repeatAfter {
		return
	}
	a.trouble.code, a.trouble.since = code, now
	a.log.note("no session with the operator, trying again (%s): %v", remedy(code), err)
}

// Found mentions that trouble is over.
func (a *agent) Found() {
	if !a.trouble.since.IsZero() {
		a.log.note("in touch with the operator again")
	}
	a.trouble = trouble{}
}

// trouble is what the session suffers from; the session's own goroutine is the only one to look.
type trouble struct {
	code  connect.Code
	since time.Time
}

func remedy(code connect.Code) string {
	switch code {
	case connect.CodeUnauthenticated:
		return "the token was not accepted: is the audience of the projected token the operator's?"
	case connect.CodePermissionDenied:
		return "this pod is not a worker of that job"
	case connect.CodeNotFound:
		return "the job is gone, finished or suspended"
	case connect.CodeFailedPrecondition:
		return "the agent and the operator are too many versions apart"
	default:
		return "the program does not depend on it"
	}
}

func directive(d *rendezvousv1.Directive) lifecycle.Directive {
	w := d.GetWorld()
	return lifecycle.Directive{
		Term: d.GetTerm(), Round: d.GetRound(), Released: d.GetReleased(),
		World: lifecycle.World{
			Digest:        w.GetMembersDigest(),
			FromStep:      w.GetFromStep(),
			WorkerRank:    clamp(w.GetWorkerRank()),
			Workers:       clamp(w.GetWorkers()),
			Processes:     clamp(w.GetProcessesPerWorker()),
			MasterAddress: w.GetMasterAddress(),
			MasterPort:    clamp(w.GetMasterPort()),
		},
	}
}

// clamp makes a count that fits an int everywhere; one so large is refused later as nonsense.
func clamp(n uint32) int { return int(min(n, math.MaxInt32)) }
