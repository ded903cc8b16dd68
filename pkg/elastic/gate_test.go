package elastic_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/pkg/elastic"
)

// openGate makes a Gate and the agent's view of it.
func (a *agent) openGate(ctx context.Context) (*elastic.Gate, *program) {
	a.t.Helper()
	var p *program
	var welcoming sync.WaitGroup
	welcoming.Go(func() { p = a.welcome() })
	g, err := elastic.OpenGate(ctx)
	welcoming.Wait()
	if err != nil || p == nil {
		a.t.Fatalf("open the gate: %v", err)
	}
	return g, p
}

// asks calls ShouldStop beside the test.
func asks(g *elastic.Gate, step uint64) <-chan any {
	answer := make(chan any, 1)
	go func() {
		stop, err := g.ShouldStop(step)
		if err != nil {
			answer <- err
			return
		}
		answer <- stop
	}()
	return answer
}

func goesOn(t *testing.T, g *elastic.Gate, step uint64) {
	t.Helper()
	if stop, err := g.ShouldStop(step); stop || err != nil {
		t.Errorf("after step %d: stop %v, error %v", step, stop, err)
	}
}

func TestTheGateStopsAProgram(t *testing.T) {
	a := begin(t)
	g, p := a.openGate(t.Context())
	defer g.Close()
	for step := uint64(41); step <= 43; step++ {
		goesOn(t, g, step)
	}
	if progress := a.page.Progress(0); progress.Done != 43 || progress.Entered != 44 {
		t.Errorf("the page says %+v", progress)
	}
	if stamps := a.page.Stamps(0); stamps.Begun == 0 || stamps.Ended == 0 {
		t.Errorf("the page says %+v", stamps)
	}
	stop := a.page.Arm(0, 1)
	answer := asks(g, stop)
	if said := p.hears(); said != (wire.Parked{Type: wire.TypeParked, Step: 44}) {
		t.Fatalf("the program says %+v", said)
	}
	// The change is called off, and made again.
	a.page.Lift(0)
	p.says(wire.Go{Type: wire.TypeGo})
	if got := <-answer; got != false {
		t.Fatalf("the answer is %v", got)
	}
	answer = asks(g, a.page.Arm(0, 1))
	p.hears()
	p.says(wire.Leave{Type: wire.TypeLeave, Step: 45})
	if got := <-answer; got != true {
		t.Fatalf("the answer is %v", got)
	}
	g.Left()
	if said := p.hears(); said != (wire.Left{Type: wire.TypeLeft, Step: 45}) {
		t.Errorf("the program says %+v", said)
	}
}

func TestTheGateLosesItsAgent(t *testing.T) {
	a := begin(t)
	g, p := a.openGate(t.Context())
	defer g.Close()
	goesOn(t, g, 1)
	answer := asks(g, a.page.Arm(0, 1))
	p.hears()
	p.hangUp()
	if err, failed := (<-answer).(error); !failed || !strings.Contains(err.Error(), "the connection to the agent is lost") {
		t.Errorf("it ends with %v", err)
	}
}

func TestTheGateOfAnOlderAgentIsOpen(t *testing.T) {
	a := begin(t)
	a.old = true
	g, _ := a.openGate(t.Context())
	goesOn(t, g, 1)
	a.page.Arm(0, 1)
	goesOn(t, g, 2)
	g.Left()
}

func TestTheGateWithoutAnAgent(t *testing.T) {
	environment(t, nil)
	g, err := elastic.OpenGate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	goesOn(t, g, 0)
	goesOn(t, g, 7)
	for _, step := range []uint64{0, 7} {
		if _, err := g.ShouldStop(step); err == nil || !strings.Contains(err.Error(), "after ShouldStop(7)") {
			t.Errorf("step %d after step 7: %v", step, err)
		}
	}
	g.Left()
}
