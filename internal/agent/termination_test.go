package agent_test

import (
	"slices"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/concertina-dev/concertina/internal/agent/agenttest"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

func terminating(report *rendezvousv1.Report) bool { return report.GetTerminating() }

// patientWorker runs the program "signals", with an operator that counts as away only after long.
func patientWorker(t *testing.T, r *agenttest.Rendezvous) *worker {
	t.Helper()
	w := startWorker(t, r, []string{outOfReachVariable + "=1m", "CONCERTINA_GRACE_SECONDS=600"}, "signals")
	join(r, 1, 1)
	w.file("ready")
	return w
}

func TestSIGTERMWaitsForTheRelease(t *testing.T) {
	r := agenttest.New(t)
	w := patientWorker(t, r)
	w.signal(syscall.SIGTERM)
	r.Await("SIGTERM", terminating)
	// A signal that passes at once shows that the program would have got the first one by now.
	w.signal(syscall.SIGUSR1)
	w.file("signals")
	w.absent("terminated")
	release := world(1, 1, 1, 61000)
	release.Released = true
	r.Direct(release)
	if code := w.exit(); code != 5 {
		t.Errorf("exit code %d, want the program's 5", code)
	}
	if got := w.file("signals"); !slices.Equal(got, []string{"user defined signal 1", "terminated"}) {
		t.Errorf("the program got %v", got)
	}
	if !ended(5)(r.Last()) || !r.Last().GetTerminating() {
		t.Errorf("the last report says %v", r.Last())
	}
}

func TestSIGTERMOfAJobThatIsGone(t *testing.T) {
	r := agenttest.New(t)
	w := patientWorker(t, r)
	r.Fail(codes.NotFound)
	w.signal(syscall.SIGTERM)
	if code := w.exit(); code != 5 {
		t.Errorf("exit code %d, want the program's 5", code)
	}
}

func TestNotFoundAloneStopsNothing(t *testing.T) {
	r := agenttest.New(t)
	w := patientWorker(t, r)
	attempts, sessions := len(r.Tokens()), len(r.Hellos())
	r.Fail(codes.NotFound)
	// The second attempt comes after the first has been refused.
	r.AwaitAttempts(attempts + 2)
	r.Fail(0)
	r.AwaitSessions(sessions + 1)
	w.signal(syscall.SIGUSR1)
	w.file("signals")
	w.absent("terminated")
}

func TestSIGTERMWhileTheOperatorIsAway(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, []string{outOfReachVariable + "=100ms", "CONCERTINA_GRACE_SECONDS=600"}, "signals")
	join(r, 1, 1)
	w.file("ready")
	r.Leave()
	w.signal(syscall.SIGTERM)
	if code := w.exit(); code != 5 {
		t.Errorf("exit code %d, want the program's 5", code)
	}
}

func TestTheProgramIsKilledBeforeTheGracePeriodEnds(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, []string{outOfReachVariable + "=1m", "CONCERTINA_GRACE_SECONDS=1"}, "stubborn")
	join(r, 1, 1)
	w.file("pid0")
	w.signal(syscall.SIGTERM)
	if code := w.exit(); code != 128+9 {
		t.Errorf("exit code %d, want 137", code)
	}
	if !ended(137)(r.Last()) {
		t.Errorf("the last report says %v", r.Last())
	}
}

func TestSIGTERMBeforeThereIsAWorld(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, nil, "exit", "0")
	r.AwaitSessions(1)
	w.signal(syscall.SIGTERM)
	if code := w.exit(); code != 143 {
		t.Errorf("exit code %d, want 143", code)
	}
	if !terminating(r.Last()) {
		t.Errorf("the last report says %v", r.Last())
	}
}

func TestOtherSignalsPassAtOnce(t *testing.T) {
	r := agenttest.New(t)
	w := patientWorker(t, r)
	want := []string{}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH} {
		w.signal(sig)
		want = append(want, sig.String())
		eventually(t, sig.String(), func() bool { return slices.Equal(w.file("signals"), want) })
	}
}
