package server

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvoustest"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// A worker says nothing more on its session. Its peers are asked: as long as one reaches it, it is only told that the
// worker is not heard; when they do not, it is lost.
func TestPeersAreAskedAboutAWorkerThatIsNotHeard(t *testing.T) {
	f := serve(t, nil)
	gang := gangOf(1, "a", "b", "c")
	for i, node := range []string{"n1", "n2", "n3"} {
		gang.Members[i].Node = node
	}
	gang.Minimum, gang.Target, gang.HeartbeatTimeout = 1, 3, time.Second
	f.Expect(digits, gang)
	var mu sync.Mutex
	up, asked := true, map[string]bool{}
	peer := func(c *rendezvoustest.Config) {
		c.StepEvery = 0
		c.Reach = func(p *rendezvousv1.Probe) bool {
			mu.Lock()
			defer mu.Unlock()
			if p.GetAddress() != "10.0.0.1" || p.GetPort() != 5000 || len(p.GetCertificate()) != 32 {
				t.Errorf("asked about %v", p)
			}
			asked[c.Hello.GetPodName()] = true
			return up
		}
	}
	f.elastic(t, "a", peer)
	f.elastic(t, "b", peer)
	f.elastic(t, "c", func(c *rendezvoustest.Config) { c.StepEvery, c.Heartbeat = 0, time.Hour })
	f.eventually(t, "who is not heard is told of", func(o rendezvous.Observation) bool {
		seen := o.Members["uid-c"]
		return seen.CutOff && !seen.Silent && seen.Witnesses != "" && len(o.Losses) == 0
	})
	mu.Lock()
	up = false
	mu.Unlock()
	f.eventually(t, "who is reached by nobody is lost", func(o rendezvous.Observation) bool {
		return len(o.Losses) == 1 && o.Losses[0].Name == "c" && strings.HasSuffix(o.Losses[0].Message, "cannot reach it")
	})
	mu.Lock()
	defer mu.Unlock()
	if !asked["a"] || !asked["b"] {
		t.Errorf("asked are %v", asked)
	}
}
