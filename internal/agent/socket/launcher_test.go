package socket

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/concertina-dev/concertina/internal/agent/wire"
)

// listenForLauncher keeps what processes and launchers say.
func listenForLauncher(t *testing.T) (*fixture, chan Message) {
	t.Helper()
	said := make(chan Message, 100)
	f := listen(t, 2, DefaultTiming())
	f.said = func(m Message) { said <- m }
	f.identity.Launcher = true
	if err := f.Open(1, 0); err != nil {
		t.Fatal(err)
	}
	return f, said
}

func TestConversationWithALauncher(t *testing.T) {
	f, said := listenForLauncher(t)
	c := f.dial(t)
	c.say(`{"type":"hello","protocol":2,"launcher":true}`)
	want := `{"type":"welcome","protocol":2,"namespace":"team","job":"digits","attempt":2,"slot":0,"slots":2,"snapshots":"","interval":"","fds":0}`
	if diff := cmp.Diff(want, c.hear()); diff != "" {
		t.Errorf("welcome (-want +got):\n%s", diff)
	}
	hello := <-said
	if _, is := hello.Body.(wire.Hello); !is || hello.Slot != Launcher {
		t.Fatalf("the agent heard %+v", hello)
	}
	process := f.dial(t)
	process.hello()
	if m := <-said; m.Slot != 0 {
		t.Errorf("its process said hello as %+v", m)
	}

	place := Place{Term: 1, Round: 3, WorkerRank: 1, Workers: 2, MasterAddress: "10.0.0.7", MasterPort: 40123}
	f.Lead(hello.Connection+100, place) // of an earlier one
	f.Lead(hello.Connection, place)
	want = `{"type":"world","term":1,"round":3,"parent":0,"fromStep":0,"rank":2,"size":4,"localRank":0,"localSize":2,"workerRank":1,"workers":2,` +
		`"masterAddress":"10.0.0.7","masterPort":40123,"restore":false,"writer":false}`
	if diff := cmp.Diff(want, c.hear()); diff != "" {
		t.Errorf("world (-want +got):\n%s", diff)
	}
	f.Rest(hello.Connection)
	if diff := cmp.Diff(`{"type":"stop"}`, c.hear()); diff != "" {
		t.Errorf("stop (-want +got):\n%s", diff)
	}
	c.say(`{"type":"stopped"}`)
	if _, is := (<-said).Body.(wire.Stopped); !is {
		t.Error("the agent did not hear that the processes have ended")
	}

	if err := f.Relaunch(hello.Connection, 4, 7); err != nil {
		t.Fatal(err)
	}
	if _, err := process.in.ReadByte(); err == nil {
		t.Error("a process of the last world kept its connection")
	}
	f.dial(t).hello()
	f.Rest(hello.Connection)
	if diff := cmp.Diff(`{"type":"stop"}`, c.hear()); diff != "" {
		t.Errorf("in the next world the launcher hears (-want +got):\n%s", diff)
	}
	if err := f.Open(1, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := c.in.ReadByte(); err == nil {
		t.Error("the launcher of a program that was started anew kept its connection")
	}
}

func TestLaunchersThatAreRefused(t *testing.T) {
	const hello = `{"type":"hello","protocol":2,"launcher":true}`
	t.Run("where every process is started by the agent", func(t *testing.T) {
		f := listen(t, 1, DefaultTiming())
		f.enter(t, Place{Term: 1, Round: 1, Workers: 1})
		c := f.dial(t)
		c.say(hello)
		c.refused("PerWorker")
	})
	t.Run("a second one", func(t *testing.T) {
		f, _ := listenForLauncher(t)
		first, second := f.dial(t), f.dial(t)
		first.say(hello)
		first.hear()
		second.say(hello)
		second.refused("a launcher already")
	})
	t.Run("one that says hello twice", func(t *testing.T) {
		f, _ := listenForLauncher(t)
		c := f.dial(t)
		c.say(hello)
		c.hear()
		c.say(hello)
		c.refused("before on this connection")
	})
	t.Run("one that trains", func(t *testing.T) {
		f, _ := listenForLauncher(t)
		c := f.dial(t)
		c.say(hello)
		c.hear()
		c.say(`{"type":"join"}`)
		c.refused("hello and stopped")
	})
	t.Run("a process that has stopped", func(t *testing.T) {
		f, _ := listenForLauncher(t)
		c := f.dial(t)
		c.hello()
		c.say(`{"type":"stopped"}`)
		c.refused("only a launcher")
	})
}
