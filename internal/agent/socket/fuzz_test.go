package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/masterport"
	"github.com/concertina-dev/concertina/internal/agent/wire"
)

// FuzzConnection has a process say whatever it likes, in two pieces, and hang up. The agent goes on: another
// process of the same worker is welcome afterwards, and nothing of the first is left.
func FuzzConnection(f *testing.F) {
	const hello = `{"type":"hello","protocol":2,"localRank":0}` + "\n"
	for _, words := range []string{
		"", "\n\n\n", "GET / HTTP/1.1\r\n\r\n", hello, hello + hello, `{"type":"join"}` + "\n",
		hello + `{"type":"join"}` + "\n" + `{"type":"join"}` + "\n",
		hello + `{"type":"progress","totalSteps":5,"metrics":{"loss":1}}` + "\n" + `{"type":"fault","step":3,"message":"x"}` + "\n",
		hello + `{"type":"snapshot","step":3,"file":"../../etc/passwd","bytes":1}` + "\n",
		`{"type":"hello","protocol":2,"localRank":-1}` + "\n", `{"type":"hello","protocol":2,"localRank":99999999999999999999}` + "\n",
	} {
		f.Add([]byte(words), uint16(len(words)/2))
	}
	f.Fuzz(func(t *testing.T, words []byte, cut uint16) {
		path := filepath.Join(t.TempDir(), "run", "agent.sock")
		server, err := Listen(path, Identity{Namespace: "team", Job: "digits", Attempt: 1, Slots: 2}, masterport.Listen,
			func(Message) {}, Timing{Hello: time.Second, Write: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := server.Close(); err != nil {
				t.Error(err)
			}
		}()
		if err := server.Open(0, 0); err != nil {
			t.Fatal(err)
		}
		dial := func() *net.UnixConn {
			conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.SetDeadline(time.Now().Add(patience))
			return conn
		}
		one := dial()
		at := min(int(cut), len(words))
		_, _ = one.Write(words[:at]) // it may have hung up already
		_, _ = one.Write(words[at:])
		_ = one.CloseWrite()
		if _, err := io.Copy(io.Discard, one); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the agent neither answers nor hangs up")
		}
		_ = one.Close()
		for _, state := range server.States() {
			if len(state.Fault) > wire.MaxFault || len(state.Metrics) > wire.MaxMetrics {
				t.Errorf("of a process is kept %+v", state)
			}
		}
		eventually(t, "the slot is free", func() bool {
			server.mu.Lock()
			defer server.mu.Unlock()
			return len(server.open) == 0 && server.slots[0].owner == nil
		})
		two := dial()
		defer func() { _ = two.Close() }()
		if _, err := two.Write([]byte(hello)); err != nil {
			t.Fatal(err)
		}
		if n, err := two.Read(make([]byte, 1)); n != 1 {
			t.Errorf("the next process is not welcome: %v", err)
		}
	})
}
