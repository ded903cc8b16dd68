package reach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network is where the agents are; a peer that is not up does not answer.
type network struct {
	mu    sync.Mutex
	up    map[string]bool
	tries map[string]int
	told  int
}

func (n *network) reach(ctx context.Context, peer Peer) error {
	n.mu.Lock()
	n.tries[peer.Address]++
	up := n.up[peer.Address]
	n.mu.Unlock()
	if up {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (n *network) changed() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told++
}

func newNetwork(up ...string) *network {
	n := &network{up: map[string]bool{}, tries: map[string]int{}}
	for _, address := range up {
		n.up[address] = true
	}
	return n
}

func probe(number uint64, address string) Probe {
	return Probe{Number: number, Peer: Peer{Address: address, Port: 1}}
}

func expect(t *testing.T, p *Prober, want ...Result) {
	t.Helper()
	if got := p.Results(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestProbesAreDoneOnceAndAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork("a")
		p := New(n.reach, n.changed)
		defer p.Close()
		both := []Probe{probe(1, "a"), probe(1, "b")}
		p.Ask(1, both)
		synctest.Wait()
		expect(t, p, Result{Number: 1, Reached: true})
		p.Ask(1, both)
		time.Sleep(patience)
		synctest.Wait()
		expect(t, p, Result{Number: 1, Reached: true}, Result{Number: 1, Reached: false})
		p.Ask(1, both)
		synctest.Wait()
		if n.tries["a"] != 1 || n.tries["b"] != 1 || n.told != 2 {
			t.Errorf("tried %v, told %d times", n.tries, n.told)
		}
		// The next number asks anew, and what is not asked for any more is forgotten.
		p.Ask(1, []Probe{probe(2, "b")})
		expect(t, p)
		time.Sleep(patience)
		synctest.Wait()
		expect(t, p, Result{Number: 2, Reached: false})
		n.up["b"] = true
		p.Ask(1, []Probe{probe(3, "b")})
		synctest.Wait()
		expect(t, p, Result{Number: 3, Reached: true})
		p.Ask(1, nil)
		expect(t, p)
	})
}

// Another leader counts from the beginning: what an earlier one was told under a number is no answer to it.
func TestAnswersBelongToATerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork("a")
		p := New(n.reach, n.changed)
		defer p.Close()
		p.Ask(1, []Probe{probe(1, "a")})
		synctest.Wait()
		n.up["a"] = false
		p.Ask(2, []Probe{probe(1, "a")})
		expect(t, p)
		time.Sleep(patience)
		synctest.Wait()
		expect(t, p, Result{Number: 1, Reached: false})
	})
}

// What is asked for is bounded, at a time and over time.
func TestProbesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork("a")
		p := New(n.reach, n.changed)
		defer p.Close()
		for number := range uint64(100) {
			p.Ask(1, []Probe{probe(number, "a")})
			synctest.Wait()
		}
		if n.tries["a"] != probeBurst {
			t.Errorf("%d probes at once", n.tries["a"])
		}
		var many []Probe
		for number := range uint64(100) {
			many = append(many, probe(1000+number, "b"))
		}
		time.Sleep(time.Minute)
		p.Ask(1, many)
		synctest.Wait()
		if n.tries["b"] != maxProbes {
			t.Errorf("%d agents are asked about", n.tries["b"])
		}
	})
}

// An agent that ends says nothing of others.
func TestCloseEndsProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		p := New(n.reach, n.changed)
		p.Ask(1, []Probe{probe(1, "b")})
		synctest.Wait()
		p.Close()
		expect(t, p)
		p.Ask(1, []Probe{probe(2, "b")})
		if n.tries["b"] != 1 || n.told != 0 {
			t.Errorf("tried %v, told %d times", n.tries, n.told)
		}
	})
}

func TestAnErrorIsAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errs := map[string]error{"a": errors.New("no route"), "b": fmt.Errorf("dial: %w", syscall.ECONNREFUSED)}
		p := New(func(_ context.Context, peer Peer) error { return errs[peer.Address] }, func() {})
		defer p.Close()
		p.Ask(1, []Probe{probe(1, "a"), probe(2, "b")})
		synctest.Wait()
		expect(t, p, Result{Number: 1}, Result{Number: 2, Refused: true})
	})
}
