package server

import (
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvoustest"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// elastic starts an agent that plays an elastic program.
func (f *fixture) elastic(t *testing.T, name string, adjust func(*rendezvoustest.Config)) *rendezvoustest.Agent {
	t.Helper()
	hello := f.pod(name)
	hello.SnapshotPort, hello.SnapshotCertificate = 5000, make([]byte, 32)
	config := f.config(hello)
	config.Elastic, config.StepEvery, config.SnapshotEvery = true, 5*time.Millisecond, 16
	config.Heartbeat = 50 * time.Millisecond
	if adjust != nil {
		adjust(&config)
	}
	agent := rendezvoustest.Start(config)
	t.Cleanup(agent.Stop)
	return agent
}

func inRound(round uint64) func(rendezvoustest.Snapshot) bool {
	return func(s rendezvoustest.Snapshot) bool { return s.Round == round }
}

// A world grows, a worker leaves, another is killed, and the rest finishes, over the network.
func TestWorldChangesWhileItTrains(t *testing.T) {
	f := serve(t, nil)
	gang := gangOf(1, "a", "b")
	gang.Minimum, gang.Target = 1, 3
	f.Expect(digits, gang)
	last := func(c *rendezvoustest.Config) { c.LastStep = 1 << 40 }
	a, b := f.elastic(t, "a", last), f.elastic(t, "b", last)
	f.eventually(t, "the world trains", func(o rendezvous.Observation) bool { return o.Progress.Step > 3 && o.Elastic })

	gang = gangOf(1, "a", "b", "c")
	gang.Minimum, gang.Target = 1, 3
	f.Expect(digits, gang)
	c := f.elastic(t, "c", last)
	grown := await(t, c, inRound(2))
	if w := grown.Worlds[2]; !w.GetRestore() || w.GetSnapshot().GetStep() != w.GetFromStep() || len(w.GetHolders()) == 0 || len(grown.Secret) != 32 {
		t.Errorf("the newcomer is told of %v, with a secret of %d bytes", w, len(grown.Secret))
	}
	stayed := await(t, a, inRound(2))
	if w := stayed.Worlds[2]; w.GetRestore() || w.GetParent() != 1 || w.GetWorkers() != 3 {
		t.Errorf("who stays is told of %v", w)
	}
	f.eventually(t, "the change is told", func(o rendezvous.Observation) bool {
		return len(o.Changes) == 2 && o.Changes[1].Reason == rendezvous.ReasonCapacityAvailable && o.Changes[1].StepsLost == 0 && o.Phase == rendezvous.PhaseTraining
	})

	gang.Members[1].Leaving = rendezvous.ReasonNodeTainted
	gang.Target = 2
	f.Expect(digits, gang)
	await(t, b, func(s rendezvoustest.Snapshot) bool { return s.Over })
	await(t, c, inRound(3))
	f.eventually(t, "the leaver is out", func(o rendezvous.Observation) bool {
		return o.Members["uid-b"].Out && len(o.Changes) == 3 && o.Changes[2].Reason == rendezvous.ReasonNodeTainted && o.Changes[2].StepsLost == 0
	})

	gang = gangOf(1, "a", "c")
	gang.Minimum, gang.Target = 1, 2
	f.Expect(digits, gang)
	c.Exit(9)
	alone := await(t, a, inRound(4))
	if w := alone.Worlds[4]; !w.GetRestore() || w.GetWorkers() != 1 {
		t.Errorf("the survivor is told of %v", w)
	}
	f.eventually(t, "the recovery is told", func(o rendezvous.Observation) bool {
		return len(o.Changes) == 4 && o.Changes[3].Reason == rendezvous.ReasonProgramFailed && len(o.Losses) == 1 && o.Losses[0].Program
	})
	for name, agent := range map[string]*rendezvoustest.Agent{"a": a, "b": b, "c": c} {
		if s := agent.Snapshot(); s.Violation != "" {
			t.Errorf("%s was told wrong: %s", name, s.Violation)
		}
	}
}

// Processes that have finished wait for each other, and end together.
func TestWorldFinishes(t *testing.T) {
	f := serve(t, nil)
	f.Expect(digits, gangOf(1, "a", "b"))
	manual := func(c *rendezvoustest.Config) { c.StepEvery, c.LastStep = 0, 5 }
	a, b := f.elastic(t, "a", manual), f.elastic(t, "b", manual)
	await(t, a, inRound(1))
	await(t, b, inRound(1))
	a.Step(5)
	f.eventually(t, "one has finished", func(o rendezvous.Observation) bool { return o.Progress.TotalSteps == 5 })
	if s := a.Snapshot(); s.Exited || s.Waiting != rendezvousv1.Waiting_WAITING_FINISHED {
		t.Errorf("a process ends before the others have finished: %+v", s)
	}
	b.Step(5)
	for _, agent := range []*rendezvoustest.Agent{a, b} {
		if s := await(t, agent, func(s rendezvoustest.Snapshot) bool { return s.Exited }); s.Code != 0 {
			t.Errorf("it ended with %d", s.Code)
		}
	}
}

// A program's own error ends its process, and not that of the others.
func TestVerdictReachesTheCulprit(t *testing.T) {
	f := serve(t, nil)
	gang := gangOf(1, "a", "b")
	gang.Minimum, gang.Target = 1, 2
	f.Expect(digits, gang)
	a, b := f.elastic(t, "a", nil), f.elastic(t, "b", nil)
	f.eventually(t, "the world trains", func(o rendezvous.Observation) bool { return o.Progress.Step > 3 })
	a.Fail("Traceback\nZeroDivisionError: division by zero")
	b.Fail("Traceback\nConnectionResetError: connection reset by peer")
	await(t, b, inRound(2))
	if s := a.Snapshot(); !s.Exited || s.Code != 1 {
		t.Errorf("the culprit is %+v", s)
	}
	f.eventually(t, "the loss is told", func(o rendezvous.Observation) bool {
		return len(o.Losses) == 1 && o.Losses[0].Name == "a" && o.Losses[0].Program && o.Losses[0].Message == "Traceback\nZeroDivisionError: division by zero"
	})
}

func TestCommunicationError(t *testing.T) {
	for text, want := range map[string]bool{
		"": false,
		"Traceback\n  File x\nConnectionResetError: [Errno 104] Connection reset by peer": true,
		"RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer\n\n": true,
		"torch.distributed.DistBackendError: NCCL communicator was aborted":               true,
		"RuntimeError: the state could not be had from peers: Operation timed out!":       true, // concertina/handover.py
		"read tcp 10.0.0.1:5: EOF":                                true,
		"connection reset by peer\nValueError: bad":               false,
		"ValueError: bad learning rate":                           false,
		"RuntimeError: CUDA error: device-side assert":            false,
		"ring: write: use of closed network connection":           true,
		"from 10.0.0.2:7000: dial tcp 10.0.0.2:7000: i/o timeout": true,
		"dial tcp 10.0.0.2:7000: connect: no route to host":       true,
		"from 10.0.0.2:7000: it has another checksum":             false,
		"KeyError: 'EOFmarker'":                                   false,
	} {
		if got := rendezvous.CommunicationError(text); got != want {
			t.Errorf("CommunicationError(%q) is %v", text, got)
		}
	}
}
