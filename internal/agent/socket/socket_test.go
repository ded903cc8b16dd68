package socket

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/masterport"
	"github.com/concertina-dev/concertina/internal/agent/wire"
)

// roleConnect makes the test binary a program that connects to the socket and says hello.
const roleConnect = "SOCKET_TEST_CONNECT"

func TestMain(m *testing.M) {
	if path := os.Getenv(roleConnect); path != "" {
		os.Exit(connect(path))
	}
	goleak.VerifyTestMain(m)
}

func connect(path string) int {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return 2
	}
	_, _ = conn.Write([]byte(`{"type":"hello","protocol":2,"localRank":0}` + "\n"))
	line, _ := bufio.NewReader(conn).ReadString('\n')
	if !strings.Contains(line, "welcome") {
		return 1
	}
	return 0
}

const patience = 20 * time.Second

// fixture gives every process that joins the place of enter, and keeps what else they say.
type fixture struct {
	*Server
	path    string
	changed chan Message
	place   *atomic.Pointer[Place]
}

func (f *fixture) heard(m Message) {
	switch m.Body.(type) {
	case nil, wire.Hello:
	case wire.Join:
		f.Give(m.Slot, m.Connection, *f.place.Load())
	default:
		f.changed <- m
	}
}

func listen(t *testing.T, slots int, timing Timing) *fixture {
	t.Helper()
	f := &fixture{
		path: filepath.Join(t.TempDir(), "run", "agent.sock"), changed: make(chan Message, 100),
		place: new(atomic.Pointer[Place]),
	}
	var err error
	f.Server, err = Listen(f.path, Identity{
		Namespace: "team", Job: "digits", Attempt: 2, Slots: slots, Snapshots: "/memory/snapshots", Interval: "auto",
	}, masterport.Listen, func(m Message) { f.heard(m) }, timing)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return f
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := masterport.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	port.Release()
	return port.Number()
}

func (f *fixture) enter(t *testing.T, place Place) {
	t.Helper()
	f.place.Store(&place)
	if err := f.Open(0, 0); err != nil {
		t.Fatal(err)
	}
	f.SetTerm(place.Term)
}

// client is a program that knows nothing but docs/program-protocol.md.
type client struct {
	t    *testing.T
	conn *net.UnixConn
	in   *bufio.Reader
	oob  []byte
}

func (f *fixture) dial(t *testing.T) *client {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: f.path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := &client{t: t, conn: conn}
	c.in = bufio.NewReader(readerFunc(c.receive))
	_ = conn.SetDeadline(time.Now().Add(patience))
	return c
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func (c *client) receive(p []byte) (int, error) {
	oob := make([]byte, 256)
	n, oobn, _, _, err := c.conn.ReadMsgUnix(p, oob)
	if err != nil {
		return 0, err
	}
	c.oob = append(c.oob, oob[:oobn]...)
	return n, nil
}

func (c *client) say(line string) {
	c.t.Helper()
	if _, err := c.conn.Write([]byte(line + "\n")); err != nil {
		c.t.Fatalf("say %.60q: %v", line, err)
	}
}

// hear returns the next message as the agent wrote it.
func (c *client) hear() string {
	c.t.Helper()
	line, err := c.in.ReadString('\n')
	if err != nil {
		c.t.Fatalf("hear: %v (%q)", err, line)
	}
	return strings.TrimSuffix(line, "\n")
}

// file returns the one file that came.
func (c *client) file() *os.File {
	c.t.Helper()
	messages, err := syscall.ParseSocketControlMessage(c.oob)
	if err != nil || len(messages) != 1 {
		c.t.Fatalf("%d control messages, %v", len(messages), err)
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		c.t.Fatalf("%d files, %v", len(fds), err)
	}
	c.oob = nil
	file := os.NewFile(uintptr(fds[0]), "handed over")
	c.t.Cleanup(func() { _ = file.Close() })
	return file
}

func (c *client) hello() *os.File {
	c.t.Helper()
	c.say(`{"type":"hello","protocol":2,"localRank":0}`)
	c.hear()
	return c.file()
}

// refused expects an error with this text, and the end of the connection.
func (c *client) refused(want string) {
	c.t.Helper()
	var message struct{ Type, Message string }
	line := c.hear()
	if err := json.Unmarshal([]byte(line), &message); err != nil || message.Type != "error" || !strings.Contains(message.Message, want) {
		c.t.Errorf("heard %s, want an error with %q", line, want)
	}
	if _, err := c.in.ReadByte(); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		c.t.Errorf("the connection goes on: %v", err)
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("waited for %s", what)
		case <-tick.C:
		}
	}
}

func TestConversationOfThePage(t *testing.T) {
	f := listen(t, 2, DefaultTiming())
	port := freePort(t)
	f.enter(t, Place{
		Term: 3, Round: 5, Parent: 4, FromStep: 7, WorkerRank: 0, Workers: 2,
		Restore: true, Snapshot: "/memory/snapshots/4-7", Writer: true,
		MasterAddress: "127.0.0.1", MasterPort: port, GivesPort: true,
	})
	c := f.dial(t)
	c.say(`{"type":"hello","protocol":2,"localRank":0}`)
	want := `{"type":"welcome","protocol":2,"namespace":"team","job":"digits","attempt":2,"slot":0,"slots":2,"snapshots":"/memory/snapshots","interval":"auto","fds":1}`
	if diff := cmp.Diff(want, c.hear()); diff != "" {
		t.Errorf("welcome (-want +got):\n%s", diff)
	}
	page := c.file()
	mem, err := unix.Mmap(int(page.Fd()), 0, 5*64, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	c.say(`{"type":"join"}`)
	var world wire.World
	if err := json.Unmarshal([]byte(c.hear()), &world); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wire.World{
		Type: "world", Term: 3, Round: 5, Parent: 4, FromStep: 7, Restore: true, Snapshot: "/memory/snapshots/4-7", Writer: true, Rank: 0, Size: 4, LocalRank: 0, LocalSize: 2,
		WorkerRank: 0, Workers: 2, MasterAddress: "127.0.0.1", MasterPort: port, FDs: 1,
	}, world); diff != "" {
		t.Errorf("world (-want +got):\n%s", diff)
	}
	checkListener(t, c.file(), port)
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(mem[8*i:]) }
	if term, round := word(9), word(10); term != 3 || round != 5 {
		t.Errorf("the page says term %d, round %d", term, round)
	}
	if entered, done := word(16), word(17); entered != 7 || done != 7 {
		t.Errorf("the page says that step %d was entered and step %d done, of a state after step 7", entered, done)
	}

	binary.NativeEndian.PutUint64(mem[2*64:], 9)
	binary.NativeEndian.PutUint64(mem[2*64+8:], 8)
	c.say(`{"type":"progress","totalSteps":900,"metrics":{"loss":0.5}}`)
	c.say(`{"type":"fault","step":9,"message":"boom"}`)
	<-f.changed
	c.say(`{"type":"finished"}`)
	<-f.changed
	if diff := cmp.Diff([]State{{
		Progress: gate.Progress{Entered: 9, Done: 8, LastStep: 900},
		Metrics:  map[string]float64{"loss": 0.5}, Fault: "boom", FaultStep: 9, FaultOrder: 1,
		Pause: Pause{Begun: true},
	}, {}}, f.States()); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	f.SetTerm(4)
	if term := word(9); term != 4 {
		t.Errorf("the page says term %d after a new leader, want 4", term)
	}
}

func checkListener(t *testing.T, file *os.File, port int) {
	t.Helper()
	flags, err := unix.FcntlInt(file.Fd(), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_NONBLOCK != 0 {
		t.Errorf("the listener is not in blocking mode: %#x, %v", flags, err)
	}
	listener, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	if got := listener.Addr().(*net.TCPAddr).Port; got != port {
		t.Errorf("listens on port %d, want %d", got, port)
	}
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = accepted.Close()
}

func TestOnlyRankZeroGetsTheListener(t *testing.T) {
	f := listen(t, 2, DefaultTiming())
	place := Place{Term: 1, Round: 1, Workers: 1, MasterAddress: "127.0.0.1", MasterPort: freePort(t), GivesPort: true}
	ask := func(localRank string) wire.World {
		c := f.dial(t)
		c.say(`{"type":"hello","protocol":2,"localRank":` + localRank + `}`)
		c.hear()
		_ = c.file()
		c.say(`{"type":"join"}`)
		var world wire.World
		if err := json.Unmarshal([]byte(c.hear()), &world); err != nil {
			t.Fatal(err)
		}
		return world
	}
	f.enter(t, place)
	if w := ask("1"); w.FDs != 0 || w.Rank != 1 || w.LocalRank != 1 {
		t.Errorf("local rank 1 got %+v", w)
	}
	place.GivesPort = false
	f.enter(t, place)
	if w := ask("0"); w.FDs != 0 || w.Rank != 0 {
		t.Errorf("rank 0 under a launcher got %+v", w)
	}
	place.GivesPort, place.WorkerRank, place.Workers = true, 1, 2
	f.enter(t, place)
	if w := ask("0"); w.FDs != 0 || w.Rank != 2 {
		t.Errorf("local rank 0 of the second worker got %+v", w)
	}
}

func TestTwoProgramsClaimOneSlot(t *testing.T) {
	f := listen(t, 1, DefaultTiming())
	f.enter(t, Place{Round: 1, Workers: 1})
	first := f.dial(t)
	page := first.hello()
	mem, err := unix.Mmap(int(page.Fd()), 0, 3*64, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	binary.NativeEndian.PutUint64(mem[2*64:], 3)

	second := f.dial(t)
	second.say(`{"type":"hello","protocol":2,"localRank":0}`)
	second.refused("belongs to another process")
	first.say(`{"type":"progress","metrics":{"loss":1}}`)
	eventually(t, "the first owner to be heard", func() bool { return f.States()[0].Metrics["loss"] == 1 })

	// When the first has gone, the slot is free, and holds nothing of the first.
	_ = first.conn.Close()
	f.Drain(0, patience)
	third := f.dial(t)
	third.hello()
	if state := f.States()[0]; state.Entered != 0 || state.Metrics != nil {
		t.Errorf("the new owner's slot holds %+v", state)
	}
}

func TestProgramsThatMisbehave(t *testing.T) {
	hello := `{"type":"hello","protocol":2,"localRank":0}`
	for name, row := range map[string]struct {
		say  []string
		want string
	}{
		"not JSON":        {[]string{"GET / HTTP/1.1"}, "one JSON object per line"},
		"unknown type":    {[]string{`{"type":"sing"}`}, "not type"},
		"join first":      {[]string{`{"type":"join"}`}, "must be hello"},
		"no such rank":    {[]string{`{"type":"hello","protocol":2,"localRank":1}`}, "local ranks 0 to 0"},
		"negative rank":   {[]string{`{"type":"hello","protocol":2,"localRank":-1}`}, "local ranks 0 to 0"},
		"other protocol":  {[]string{`{"type":"hello","protocol":9,"localRank":0}`}, "protocol 9"},
		"too long":        {[]string{strings.Repeat("x", wire.MaxLine)}, "longer than 64 KiB"},
		"hello twice":     {[]string{hello, hello}, "said before"},
		"join twice":      {[]string{hello, `{"type":"join"}`, `{"type":"join"}`}, "said before"},
		"too many":        {[]string{hello, `{"type":"progress","metrics":{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1}}`}, "9 metrics"},
		"a score of none": {[]string{hello, `{"type":"score","step":1}`}, "either a value or an error"},
		"two scores":      {[]string{hello, `{"type":"score","step":1,"value":1,"error":"bad"}`}, "either a value or an error"},
		"a score in text": {[]string{hello, `{"type":"score","step":1,"value":"high"}`}, "does not fit"},
		"a score too far": {[]string{hello, `{"type":"score","step":9223372036854775807,"value":1}`}, "the largest is 2^62"},
		"not a number":    {[]string{hello, `{"type":"progress","metrics":{"loss":NaN}}`}, "one JSON object per line"},
		"a quoted novel":  {[]string{`{"type":"` + strings.Repeat(`\u0001`, 9000) + `"}`}, "not type"},
		"oversized fault": {[]string{hello, `{"type":"fault","message":"` + strings.Repeat("x", wire.MaxLine) + `"}`}, "longer than 64 KiB"},
	} {
		t.Run(name, func(t *testing.T) {
			f := listen(t, 1, DefaultTiming())
			f.enter(t, Place{Round: 1, WorkerRank: 1, Workers: 2, MasterAddress: "127.0.0.1", MasterPort: 1})
			c := f.dial(t)
			for i, line := range row.say {
				// The agent may hang up in the middle of a line that is too long.
				if _, err := c.conn.Write([]byte(line + "\n")); err != nil && i < len(row.say)-1 {
					t.Fatal(err)
				}
				if i < len(row.say)-1 {
					c.hear()
				}
			}
			c.refused(row.want)
			f.Drain(0, patience)
			f.dial(t).hello()
		})
	}
}

func TestHelloBeforeAProgramWasStarted(t *testing.T) {
	f := listen(t, 1, DefaultTiming())
	c := f.dial(t)
	c.say(`{"type":"hello","protocol":2,"localRank":0}`)
	c.refused("no program has been started")
	if states := f.States(); states != nil {
		t.Errorf("states %+v before there is a program", states)
	}
}

func TestAConnectionThatSaysNothingEnds(t *testing.T) {
	f := listen(t, 1, Timing{Hello: time.Millisecond, Write: time.Second})
	f.enter(t, Place{Round: 1, Workers: 1})
	c := f.dial(t)
	if _, err := c.in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end of the connection", err)
	}
}

func TestTooManyConnections(t *testing.T) {
	f := listen(t, 1, DefaultTiming())
	f.enter(t, Place{Round: 1, Workers: 1})
	f.dial(t).hello()
	var last *client
	for range 2 + maxExtra {
		last = f.dial(t)
	}
	if _, err := last.in.ReadByte(); err == nil {
		t.Error("one connection too many was admitted")
	}
}

func TestANewWorldEndsOldConnections(t *testing.T) {
	f := listen(t, 1, DefaultTiming())
	f.enter(t, Place{Term: 1, Round: 1, Workers: 1})
	c := f.dial(t)
	c.hello()
	c.say(`{"type":"progress","metrics":{"loss":1}}`)
	eventually(t, "the metric", func() bool { return f.States()[0].Metrics != nil })
	f.enter(t, Place{Term: 1, Round: 2, Workers: 1})
	if _, err := c.in.ReadByte(); err == nil {
		t.Error("a connection of the old world goes on")
	}
	if state := f.States()[0]; state.Metrics != nil {
		t.Errorf("the new world begins with %+v", state)
	}
	f.dial(t).hello()
}

func TestLongFaultsKeepTheirEnd(t *testing.T) {
	f := listen(t, 1, DefaultTiming())
	f.enter(t, Place{Round: 1, Workers: 1})
	c := f.dial(t)
	c.hello()
	c.say(`{"type":"fault","step":1,"message":"` + strings.Repeat("x", wire.MaxFault) + `the end"}`)
	<-f.changed
	if fault := f.States()[0].Fault; len(fault) != wire.MaxFault || !strings.HasSuffix(fault, "the end") {
		t.Errorf("kept %d bytes that end with %.10q", len(fault), fault[len(fault)-10:])
	}
}

func TestOnlyOwnProcessesAreAdmitted(t *testing.T) {
	f := listen(t, 1, DefaultTiming())
	f.enter(t, Place{Round: 1, Workers: 1})
	f.mu.Lock()
	f.user = -1
	f.mu.Unlock()
	// This process has another user id than the agent now, and is not its descendant.
	c := f.dial(t)
	c.refused("was not started by this agent")
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), roleConnect+"="+f.path)
	if err := child.Run(); err != nil {
		t.Errorf("a descendant with another user id was not admitted: %v", err)
	}
}

func TestModesOfTheSocket(t *testing.T) {
	f := listen(t, 1, DefaultTiming())
	directory, socket := os.FileMode(0o700), os.FileMode(0o600)
	if os.Geteuid() == 0 {
		directory, socket = 0o711, 0o666
	}
	for path, want := range map[string]os.FileMode{filepath.Dir(f.path): directory, f.path: socket} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
}

func TestMasterPortThatIsTaken(t *testing.T) {
	f := listen(t, 1, DefaultTiming())
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	f.enter(t, Place{
		Round: 1, Workers: 1, GivesPort: true,
		MasterAddress: "127.0.0.1", MasterPort: other.Addr().(*net.TCPAddr).Port,
	})
	c := f.dial(t)
	c.hello()
	c.say(`{"type":"join"}`)
	c.refused("taken by another process")
}

func TestWhereTheSocketCannotBe(t *testing.T) {
	refused := func(path string) error {
		s, err := Listen(path, Identity{Slots: 1}, nil, nil, DefaultTiming())
		if err == nil {
			_ = s.Close()
		}
		return err
	}
	if err := refused(filepath.Join(t.TempDir(), strings.Repeat("x", 200), "agent.sock")); err == nil || !strings.Contains(err.Error(), "longer than 107") {
		t.Errorf("a path that is too long: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := refused(filepath.Join(file, "run", "agent.sock")); err == nil {
		t.Error("a directory in a file")
	}
}

func TestTheSocketOfAnEarlierLifeIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	_ = old.Close()
	s, err := Listen(path, Identity{Slots: 1}, nil, nil, DefaultTiming())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}
