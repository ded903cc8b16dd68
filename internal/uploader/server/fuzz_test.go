package server

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/checkpoint/storage"
	"github.com/concertina-dev/concertina/internal/score"
	"github.com/concertina-dev/concertina/internal/uploader"
)

// FuzzAsk has somebody in the pod say whatever they like to the uploader, with a file. They get one line or none, nothing
// is written beside the storage, and the uploader goes on.
func FuzzAsk(f *testing.F) {
	for _, line := range []string{
		"", "\n", "{}", `{"ask":"check"}`, `{"ask":"restore"}`, `{"ask":"restore","path":"../../etc"}`, `{"ask":"restore","path":"team/llama/uid"}`,
		`{"ask":"restore","path":"/"}`, `{"ask":"restore","apart":true,"without":["x"]}`,
		`{"ask":"restore","path":"team/llama/uid/attempt-1/1-2","parts":[{"key":"d0.1.0123456789abcdef","bytes":3}]}`,
		`{"ask":"restore","path":"team/llama/uid/../x","parts":[{"key":"x"}]}`, `{"ask":"save","keep":1}`,
		`{"ask":"save","keep":-1,"snapshot":{"round":1,"step":2,"bytes":3,"hash":"00"}}`,
		`{"ask":"save","snapshot":{"round":18446744073709551615,"step":18446744073709551615,"bytes":18446744073709551615}}`,
		`{"ask":"check"}` + "\n" + `{"ask":"check"}`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, words []byte) {
		top := t.TempDir()
		kept := filepath.Join(top, "kept")
		if err := os.Mkdir(kept, 0o755); err != nil {
			t.Fatal(err)
		}
		s, err := storage.Open(t.Context(), "file://"+kept)
		if err != nil {
			t.Fatal(err)
		}
		socket := filepath.Join(t.TempDir(), "socket")
		server, err := Listen(socket, New(s, storage.Job{Namespace: "team", Name: "llama", UID: "uid"}, 1, "team/other", score.Best{}, func(string, ...any) {}))
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := errors.Join(server.Close(), s.Close()); err != nil {
				t.Error(err)
			}
		}()
		if answer := say(t, socket, words); len(answer) > 0 {
			var read uploader.Answer
			if len(answer) > wire.MaxLine || json.Unmarshal(answer, &read) != nil {
				t.Errorf("%q is answered with %.200q", words, answer)
			}
		}
		if beside, err := os.ReadDir(top); err != nil || len(beside) != 1 {
			t.Errorf("%q leaves %v beside the storage, %v", words, beside, err)
		}
		if _, err := uploader.Ask(t.Context(), socket, uploader.Request{Ask: uploader.AskCheck}); err != nil {
			t.Errorf("after %q it serves nobody: %v", words, err)
		}
	})
}

// say sends words and an open file to the uploader, and returns what it says.
func say(t *testing.T, socket string, words []byte) []byte {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(2 * askTimeout))
	_, _, _ = conn.WriteMsgUnix(append(words, '\n'), syscall.UnixRights(int(file.Fd())), nil) // it may have hung up already
	answer, err := io.ReadAll(io.LimitReader(conn, 2*wire.MaxLine))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%q is neither answered nor hung up on", words)
	}
	return answer
}
