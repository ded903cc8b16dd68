package socket

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/concertina-dev/concertina/internal/agent/wire"
)

// The newest scores are kept, with the round in which they were said, whatever becomes of the program; and programs know the metric.
func TestScoresAreKept(t *testing.T) {
	f := listen(t, 1, DefaultTiming())
	f.identity.Best = "accuracy"
	f.enter(t, Place{Term: 1, Round: 3, WorkerRank: 1, Workers: 2, MasterAddress: "127.0.0.1", MasterPort: 1})
	c := f.dial(t)
	c.say(`{"type":"hello","protocol":2,"localRank":0}`)
	if welcome := c.hear(); !strings.Contains(welcome, `"best":"accuracy"`) {
		t.Fatalf("it is welcomed with %s", welcome)
	}
	c.say(`{"type":"score","step":1,"value":0.5}`) // in no world
	c.say(`{"type":"join"}`)
	c.hear()
	var want []Score
	for step := range uint64(10) {
		value := float64(step) / 4
		c.say(fmt.Sprintf(`{"type":"score","step":%d,"value":%g}`, step, value))
		want = append(want, Score{Round: 3, Step: step, Value: &value})
	}
	c.say(`{"type":"score","step":8,"error":"accuracy is nan"}`)
	c.say(`{"type":"score","step":10,"error":"no accuracy"}`)
	c.say(`{"type":"score","step":10,"value":0.25}`)
	c.say(`{"type":"score","step":11,"error":"accuracy is nan"}`)
	want = append(want[4:10], Score{Round: 3, Step: 10, Value: ptr(0.25)}, Score{Round: 3, Step: 11, Error: "accuracy is nan"})
	for range 15 {
		if message := <-f.changed; message.Slot != 0 {
			t.Errorf("%+v is said", message)
		} else if _, ok := message.Body.(wire.Score); !ok {
			t.Errorf("%+v is said", message)
		} else if body := message.Body.(wire.Score); body.Step == 11 {
			break
		}
	}
	if diff := cmp.Diff(want, f.Scores()); diff != "" {
		t.Errorf("it keeps others (-want +got):\n%s", diff)
	}
	if err := f.Open(0, 0); err != nil {
		t.Fatal(err)
	}
	if len(f.Scores()) != len(want) {
		t.Errorf("once the program is started anew it keeps %v", f.Scores())
	}
}

func ptr(value float64) *float64 { return &value }
