package server

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/checkpoint/storage"
	"github.com/concertina-dev/concertina/internal/uploader"
	v1 "github.com/concertina-dev/concertina/internal/uploader/uploaderv1"
	"github.com/concertina-dev/concertina/internal/uploader/uploaderv1/uploaderv1connect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pod is an uploader, with the folder that its agent shares with it.
type pod struct {
	uploaderv1connect.UploaderClient
	folder string
}

func podOf(t *testing.T, kept, uid string, attempt int32) *pod {
	t.Helper()
	s, err := storage.Open(t.Context(), "file://"+kept)
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{folder: t.TempDir()}
	root, err := os.OpenRoot(p.folder)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "socket")
	u := New(s, storage.Job{Namespace: "team", Name: "llama", UID: uid}, attempt, root, t.Logf)
	server, err := Listen(path, u)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, end := range []func() error{server.Close, root.Close, s.Close} {
			if err := end(); err != nil {
				t.Error(err)
			}
		}
	})
	p.UploaderClient = uploader.NewClient(path)
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
	sum := hash.Sum()
	name := checkpoint.ID{Round: round, Step: step}.String()
	if err := os.WriteFile(filepath.Join(p.folder, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
	answer, err := p.Save(t.Context(), connect.NewRequest(&v1.SaveRequest{
		Snapshot: &v1.Snapshot{Round: round, Step: step, Bytes: uint64(len(data)), Hash: sum[:]}, File: name, Keep: 2,
	}))
	if err != nil {
		t.Fatal(err)
	}
	return answer.Msg.GetPath()
}

func (p *pod) restore(t *testing.T, path string) (*v1.RestoreResponse, []byte) {
	t.Helper()
	answer, err := p.Restore(t.Context(), connect.NewRequest(&v1.RestoreRequest{Path: path, File: "restored.part"}))
	if err != nil {
		t.Fatal(err)
	}
	if answer.Msg.GetSnapshot() == nil {
		return answer.Msg, nil
	}
	data, err := os.ReadFile(filepath.Join(p.folder, "restored.part"))
	if err != nil {
		t.Fatal(err)
	}
	return answer.Msg, data
}

func TestTheNextAttemptGoesOnFromWhatWasSaved(t *testing.T) {
	kept := t.TempDir()
	first := podOf(t, kept, "uid-1", 1)
	if _, err := first.Check(t.Context(), connect.NewRequest(&v1.CheckRequest{})); err != nil {
		t.Fatal(err)
	}
	if answer, _ := first.restore(t, ""); answer.GetSnapshot() != nil {
		t.Errorf("before anything was saved %v is restored", answer)
	}
	first.save(t, 1, 10)
	first.save(t, 2, 20)
	newest := first.save(t, 3, 30)

	second := podOf(t, kept, "uid-1", 2)
	answer, data := second.restore(t, "")
	if s := answer.GetSnapshot(); s.GetRound() != 3 || s.GetStep() != 30 || !answer.GetOwn() || answer.GetPath() != newest || !bytes.Equal(data, content(30)) {
		t.Errorf("the next attempt goes on from %v with %d bytes", answer, len(data))
	}
	another := podOf(t, kept, "uid-2", 1)
	if answer, _ := another.restore(t, ""); answer.GetSnapshot() != nil {
		t.Errorf("another job of this name begins with %v", answer)
	}
	if answer, data := another.restore(t, "team/llama"); answer.GetOwn() || answer.GetSnapshot().GetStep() != 30 || !bytes.Equal(data, content(30)) {
		t.Errorf("asked for the state of the first job, it gets %v", answer)
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
	if answer.GetSnapshot().GetStep() != 20 || !bytes.Equal(data, content(20)) ||
		len(answer.GetRefused()) != 1 || !strings.Contains(answer.GetRefused()[0], newest) {
		t.Errorf("with a damaged newest one it goes on from %v", answer)
	}
}

func TestWhatIsRefused(t *testing.T) {
	p := podOf(t, t.TempDir(), "uid", 1)
	if err := os.Symlink("/etc/passwd", filepath.Join(p.folder, "link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"../x", "/etc/passwd", "..", "", "link", "absent"} {
		_, err := p.Save(t.Context(), connect.NewRequest(&v1.SaveRequest{
			Snapshot: &v1.Snapshot{Hash: make([]byte, 32)}, File: name,
		}))
		if err == nil {
			t.Errorf("the file %q was saved", name)
		}
	}
	for _, request := range []*v1.RestoreRequest{{File: "../x"}, {Path: "../other", File: "x"}, {Path: "a/../../b", File: "x"}} {
		if _, err := p.Restore(t.Context(), connect.NewRequest(request)); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%v: %v", request, err)
		}
	}
	if _, err := p.Save(t.Context(), connect.NewRequest(&v1.SaveRequest{File: "x"})); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Error(err)
	}
}
