package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/checkpoint/storage"
	"github.com/concertina-dev/concertina/internal/score"
	"github.com/concertina-dev/concertina/internal/uploader"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pod is an uploader with the socket on which its agent asks.
type pod struct{ socket, folder string }

func podOf(t *testing.T, kept, uid string, attempt int32) *pod {
	t.Helper()
	s, err := storage.Open(t.Context(), "file://"+kept)
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{socket: filepath.Join(t.TempDir(), "of-its-own", "socket"), folder: t.TempDir()}
	server, err := Listen(p.socket, New(s, storage.Job{Namespace: "team", Name: "llama", UID: uid}, attempt, "team/llama", score.Best{}, t.Logf))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, end := range []func() error{server.Close, s.Close} {
			if err := end(); err != nil {
				t.Error(err)
			}
		}
	})
	return p
}

func content(step uint64) []byte {
	data := make([]byte, 9<<20)
	_, _ = rand.NewChaCha8([32]byte{byte(step)}).Read(data)
	return data
}

// save has a snapshot saved, and returns where it is.
func (p *pod) save(t *testing.T, round, step uint64) string {
	t.Helper()
	data := content(step)
	hash := checkpoint.NewHasher()
	_, _ = hash.Write(data)
	snapshot := checkpoint.Snapshot{ID: checkpoint.ID{Round: round, Step: step}, Bytes: uint64(len(data)), Hash: hash.Sum()}
	answer, err := uploader.Ask(t.Context(), p.socket, uploader.Request{
		Ask: uploader.AskSave, Snapshot: uploader.SnapshotOf(snapshot), Keep: 2,
	}, p.file(t, data))
	if err != nil {
		t.Fatal(err)
	}
	return answer.Path
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it is not so that %s", what)
		}
	}
}

// file is one with a content, which nobody else can open.
func (p *pod) file(t *testing.T, data []byte) *os.File {
	t.Helper()
	file, err := os.CreateTemp(p.folder, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	if _, err := file.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file.Name()); err != nil {
		t.Fatal(err)
	}
	return file
}

func (p *pod) restore(t *testing.T, path string) (*uploader.Answer, []byte) {
	t.Helper()
	file := p.file(t, []byte("something that was there before"))
	answer, err := uploader.Ask(t.Context(), p.socket, uploader.Request{Ask: uploader.AskRestore, Path: path}, file)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<40))
	if err != nil {
		t.Fatal(err)
	}
	return answer, data
}

func TestTheNextAttemptGoesOnFromWhatWasSaved(t *testing.T) {
	kept := t.TempDir()
	first := podOf(t, kept, "uid-1", 1)
	if _, err := uploader.Ask(t.Context(), first.socket, uploader.Request{Ask: uploader.AskCheck}); err != nil {
		t.Fatal(err)
	}
	if answer, _ := first.restore(t, ""); answer.Snapshot != nil {
		t.Errorf("before anything was saved %v is restored", answer)
	}
	first.save(t, 1, 10)
	older := first.save(t, 2, 20)
	newest := first.save(t, 3, 30)

	// What is older than the two that are to be kept goes, after the answer.
	waitFor(t, "the oldest is deleted", func() bool {
		left, err := filepath.Glob(filepath.Join(kept, "team/llama/uid-1/attempt-1/*/manifest.json"))
		return err == nil && len(left) == 2
	})

	second := podOf(t, kept, "uid-1", 2)
	answer, data := second.restore(t, "")
	if s := answer.Snapshot; s.Round != 3 || s.Step != 30 || !answer.Own || answer.Path != newest || !bytes.Equal(data, content(30)) {
		t.Errorf("the next attempt goes on from %v with %d bytes", answer, len(data))
	}
	another := podOf(t, kept, "uid-2", 1)
	if answer, _ := another.restore(t, ""); answer.Snapshot != nil {
		t.Errorf("another job of this name begins with %v", answer)
	}
	if answer, data := another.restore(t, "team/llama"); answer.Own || answer.Snapshot.Step != 30 || !bytes.Equal(data, content(30)) {
		t.Errorf("asked for the state of the first job, it gets %v", answer)
	}
	if answer, data := another.restore(t, older); answer.Snapshot == nil || answer.Snapshot.Step != 20 || answer.Path != older || !bytes.Equal(data, content(20)) {
		t.Errorf("asked for one of them, it gets %v", answer)
	}
	// A piece of the newest is altered: what was before it is taken, and the newest is named.
	pieces, err := filepath.Glob(filepath.Join(kept, newest, "data", "*"))
	if err != nil || len(pieces) != 2 {
		t.Fatal(pieces, err)
	}
	if err := os.Truncate(pieces[0], 5); err != nil {
		t.Fatal(err)
	}
	answer, data = second.restore(t, "")
	if answer.Snapshot.Step != 20 || !bytes.Equal(data, content(20)) ||
		len(answer.Refused) != 1 || !strings.Contains(answer.Refused[0], newest) {
		t.Errorf("with a damaged newest one it goes on from %v", answer)
	}
}

func TestWhatIsRefused(t *testing.T) {
	p := podOf(t, t.TempDir(), "uid", 1)
	wrong := uploader.SnapshotOf(checkpoint.Snapshot{Bytes: 3})
	for _, request := range []uploader.Request{
		{}, {Ask: "delete"}, {Ask: uploader.AskSave}, {Ask: uploader.AskSave, Snapshot: wrong},
		{Ask: uploader.AskRestore, Path: "../other"}, {Ask: uploader.AskRestore, Path: "team/other"}, {Ask: uploader.AskRestore, Path: "team"}, {Ask: uploader.AskRestore, Path: "a/../../b"},
	} {
		if answer, err := uploader.Ask(t.Context(), p.socket, request, p.file(t, []byte("abc"))); err == nil {
			t.Errorf("%+v is answered with %+v", request, answer)
		}
	}
	if _, err := uploader.Ask(t.Context(), p.socket, uploader.Request{Ask: uploader.AskRestore}); err == nil || errors.Is(err, uploader.ErrPassing) {
		t.Errorf("without a file: %v", err)
	}
	if _, err := uploader.Ask(t.Context(), p.socket+"-none", uploader.Request{Ask: uploader.AskCheck}); !errors.Is(err, uploader.ErrPassing) {
		t.Errorf("without an uploader: %v", err)
	}
}

// A storage that cannot be opened is told to whoever asks: in the log of a container that ends nobody looks.
func TestAStorageThatCannotBeOpened(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	server, err := Listen(socket, Unopened(errors.New("unknown parameter \"pathstyle\"")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	for _, ask := range []string{uploader.AskCheck, uploader.AskSave, uploader.AskRestore} {
		_, err := uploader.Ask(t.Context(), socket, uploader.Request{Ask: ask})
		if err == nil || errors.Is(err, uploader.ErrPassing) || !strings.Contains(err.Error(), "pathstyle") {
			t.Errorf("%s: %v", ask, err)
		}
	}
}

// Memory is charged to who first writes to it. So a file has the room for a checkpoint before the uploader writes it, and
// the worker made that room; one that cannot is told of, and no older checkpoint is tried for it.
func TestTheWorkerMakesRoomForACheckpoint(t *testing.T) {
	p := podOf(t, t.TempDir(), "uid", 1)
	p.save(t, 1, 10)
	p.save(t, 1, 20)
	file := p.file(t, nil)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	socket, _ := conn.(*net.UnixConn)
	line := wire.NewConn(socket)
	defer func() { _ = line.Close() }()
	say := func(what any, files ...*os.File) (answer uploader.Answer) {
		t.Helper()
		if err := line.Write(what, files...); err != nil {
			t.Fatal(err)
		}
		text, err := line.ReadLine()
		if err == nil {
			err = json.Unmarshal(text, &answer)
		}
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	asked := say(uploader.Request{Ask: uploader.AskRestore}, file)
	if info, err := file.Stat(); err != nil || info.Size() > 0 || asked.Room != uint64(len(content(20))) || asked.Snapshot != nil {
		t.Fatalf("before there is room for it, it answers %+v, and the file has %d bytes (%v)", asked, info.Size(), err)
	}
	whole := uint64(len(content(20)))
	if asked.Size == nil || *asked.Size != (wire.Size{State: whole, Own: whole}) {
		t.Errorf("a state of %d bytes is said to have %+v", whole, asked.Size)
	}
	refused := say(uploader.Made{Error: "the volume is too small"})
	if refused.Passing || !strings.Contains(refused.Error, "the volume is too small") || refused.Room > 0 {
		t.Errorf("where there is no room it answers %+v", refused)
	}
}

// Parts that make no whole state make no checkpoint. Where there is one of such parts all the same the one before it is taken.
func TestPartsThatMakeNoState(t *testing.T) {
	kept := t.TempDir()
	p := podOf(t, kept, "uid", 1)
	whole := p.save(t, 1, 10)
	id := checkpoint.ID{Round: 1, Step: 20}
	var parts []uploader.Part
	for _, key := range []string{"s0.2.0123456789abcdef", "r0.2.0123456789abcdef"} {
		hash := checkpoint.NewHasher()
		_, _ = hash.Write([]byte(key))
		part := uploader.Part{Key: key, Bytes: uint64(len(key)), Hash: hash.Sum()}
		parts = append(parts, part)
		if _, err := uploader.Ask(t.Context(), p.socket, uploader.Request{
			Ask: uploader.AskPut, Snapshot: uploader.SnapshotOf(checkpoint.Snapshot{ID: id}), Parts: []uploader.Part{part},
		}, p.file(t, []byte(key))); err != nil {
			t.Fatal(err)
		}
	}
	finish := uploader.Request{Ask: uploader.AskFinish, Snapshot: uploader.SnapshotOf(checkpoint.Snapshot{ID: id}), Parts: parts}
	if answer, err := uploader.Ask(t.Context(), p.socket, finish); err == nil || errors.Is(err, uploader.ErrPassing) || !strings.Contains(err.Error(), "no whole state") {
		t.Errorf("a share is missing: %+v, %v", answer, err)
	}
	s, err := storage.Open(t.Context(), "file://"+kept)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	place := storage.Place{Job: storage.Job{Namespace: "team", Name: "llama", UID: "uid"}, Attempt: 1, ID: id}
	if err := s.Finish(t.Context(), place, []checkpoint.Snapshot{parts[0].Of(id), parts[1].Of(id)}); err != nil {
		t.Fatal(err)
	}
	answer, data := p.restore(t, "")
	if answer.Path != whole || !bytes.Equal(data, content(10)) || len(answer.Refused) != 1 || !strings.Contains(answer.Refused[0], "no whole state") {
		t.Errorf("it goes on from %+v", answer)
	}
}

// A save that would take years goes on at once when its rate is lifted.
func TestThePaceOfASaveThatRuns(t *testing.T) {
	p := podOf(t, t.TempDir(), "uid", 1)
	data := append(content(1), content(2)...)
	hash := checkpoint.NewHasher()
	_, _ = hash.Write(data)
	snapshot := checkpoint.Snapshot{ID: checkpoint.ID{Round: 1, Step: 1}, Bytes: uint64(len(data)), Hash: hash.Sum()}
	request := uploader.Request{Ask: uploader.AskSave, Snapshot: uploader.SnapshotOf(snapshot), Keep: 2}
	slow, fast := uint64(1), uint64(0)
	request.Rate = &slow
	paces := make(chan uploader.Pace)
	go func() {
		paces <- uploader.Pace{Rate: &slow}
		paces <- uploader.Pace{Rate: &fast}
	}()
	answer, err := uploader.AskPaced(t.Context(), p.socket, request, paces, p.file(t, data))
	if err != nil || answer.Path == "" {
		t.Fatalf("%+v, %v", answer, err)
	}
}
