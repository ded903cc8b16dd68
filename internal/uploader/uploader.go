package uploader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// Names of the variables that the operator sets on the uploader's container. The credentials of the storage are
// beside them, as the provider's own tools read them.
const (
	EnvNamespace = "CONCERTINA_NAMESPACE"
	EnvJob       = "CONCERTINA_JOB"
	EnvJobUID    = "CONCERTINA_JOB_UID"
	EnvAttempt   = "CONCERTINA_ATTEMPT"
	EnvStorage   = "CONCERTINA_STORAGE"
	// EnvRestoreFrom is spec.checkpoint.restoreFrom: besides the job's own, what is below it is all that is restored.
	EnvRestoreFrom = "CONCERTINA_RESTORE_FROM"
	EnvSocket      = "CONCERTINA_UPLOADER_SOCKET"
	// EnvBest is spec.checkpoint.storage.best as a score.Best writes it; empty for none.
	EnvBest = "CONCERTINA_BEST"
)

// What a request asks for.
const (
	// AskCheck asks whether the storage can be written and read.
	AskCheck = "check"
	// AskSave has the snapshot in the file made durable, and older checkpoints deleted beyond those to keep. It takes
	// as long as it takes; one that was broken off goes on where it was.
	AskSave = "save"
	// AskPut has the part in the file put, for a checkpoint that others put parts of as well; AskFinish has the manifest
	// written when all parts that it names were put. What was broken off goes on where it was.
	AskPut    = "put"
	AskFinish = "finish"
	// AskScore has the score of a snapshot put beside it, which may be durable, or is about to be.
	AskScore = "score"
	// AskBest asks which checkpoints of the job stay for their scores.
	AskBest = "best"
	// AskRestore has the newest checkpoint below a path written to the file. Before that the answer says how many bytes it
	// needs (Room), and waits for them (Made): memory is charged to whoever first writes to it, and that must be the
	// worker, whose limit has it, and not the uploader. Of a checkpoint in parts it says so of each, and the worker sends a file
	// for it with Made.
	//
	// With Apart the shards of a state in shards stay where they are: the answer says what there is besides (Of). With Parts these
	// are all that is brought, of the checkpoint that has the path, and which is to have them so.
	AskRestore = "restore"
)

// Request is one line; a file comes with AskSave, AskPut and AskRestore.
type Request struct {
	Ask      string    `json:"ask"`
	Snapshot *Snapshot `json:"snapshot,omitempty"`
	// Parts are the one that is put, or all that the checkpoint is made of, or those that are brought of it.
	Parts []Part `json:"parts,omitempty"`
	// Keep is how many complete checkpoints to keep, at least 1.
	Keep int `json:"keep,omitempty"`
	// Score is that of the snapshot, by the metric that the uploader knows.
	Score *float64 `json:"score,omitempty"`
	// Path lies below the URL of the storage: NAMESPACE/NAME, or more of a checkpoint's path. Empty for this job's own.
	Path string `json:"path,omitempty"`
	// Apart leaves shards out, Without has checkpoints not looked at, by their paths.
	Apart   bool     `json:"apart,omitempty"`
	Without []string `json:"without,omitempty"`
	Pace
}

// Pace is how many bytes the uploader may send in a second, 0 for all that it can; nil for no change of that. It comes with a
// request, and in lines of its own for as long as that is under way.
type Pace struct {
	Rate *uint64 `json:"rate,omitempty"`
}

// Made is the line by which the worker says that a file has the room that was asked for, or why it has not.
type Made struct {
	Error string `json:"error,omitempty"`
	// Files is 1 when the file comes along, for a part.
	Files int `json:"files,omitempty"`
}

// Answer is one line.
type Answer struct {
	// Room is how many bytes the file is to have, and Size how large the state is of which it is a part, which an older uploader
	// leaves out; nothing else is said with it, and another answer follows.
	Room uint64     `json:"room,omitempty"`
	Size *wire.Size `json:"size,omitempty"`
	// Part is what the room is for, with Path; empty for the file that came with the request.
	Part string `json:"part,omitempty"`
	// Error is what is wrong, empty for nothing, and Passing whether that may be over later.
	Error   string `json:"error,omitempty"`
	Passing bool   `json:"passing,omitempty"`
	// Snapshot is what was restored; nil when there is no checkpoint.
	Snapshot *Snapshot `json:"snapshot,omitempty"`
	// Parts are those that were brought, empty when it is one file, and Of those that were not.
	Parts []Part `json:"parts,omitempty"`
	Of    []Part `json:"of,omitempty"`
	// Path is where the checkpoint is, below the URL of the storage.
	Path string `json:"path,omitempty"`
	// Own is true when it is one of this job, so that its round is one of the job's rounds.
	Own bool `json:"own,omitempty"`
	// Refused are newer ones that could not be used, in words.
	Refused []string `json:"refused,omitempty"`
	// Best are those that stay for their scores, the best first.
	Best []Kept `json:"best,omitempty"`
}

// Kept is a checkpoint with a score.
type Kept struct {
	Round uint64  `json:"round"`
	Step  uint64  `json:"step"`
	Path  string  `json:"path"`
	Score float64 `json:"score"`
}

// Snapshot is a checkpoint.Snapshot as it travels.
type Snapshot struct {
	Round uint64          `json:"round"`
	Step  uint64          `json:"step"`
	Bytes uint64          `json:"bytes"`
	Hash  checkpoint.Hash `json:"hash"`
}

// SnapshotOf is a snapshot as it travels, Snapshot what it was.
func SnapshotOf(s checkpoint.Snapshot) *Snapshot { return &Snapshot{s.Round, s.Step, s.Bytes, s.Hash} }

// Snapshot is what it stands for.
func (s *Snapshot) Snapshot() checkpoint.Snapshot {
	return checkpoint.Snapshot{ID: checkpoint.ID{Round: s.Round, Step: s.Step}, Bytes: s.Bytes, Hash: s.Hash}
}

// Part is a part of a snapshot as it travels.
type Part struct {
	Key   string          `json:"key"`
	Bytes uint64          `json:"bytes"`
	Hash  checkpoint.Hash `json:"hash"`
}

// PartOf is a part as it travels, Of what it was.
func PartOf(s checkpoint.Snapshot) Part { return Part{s.Part, s.Bytes, s.Hash} }

// Of is the part of a state that it stands for.
func (p *Part) Of(state checkpoint.ID) checkpoint.Snapshot {
	state.Part = p.Key
	return checkpoint.Snapshot{ID: state, Bytes: p.Bytes, Hash: p.Hash}
}

// ErrPassing marks what may be over when it is tried again: the uploader has not started yet, or the storage cannot be
// reached.
var ErrPassing = errors.New("not now")

// Ask sends a request to the uploader at a socket, with the files that belong to it, and waits for the answer.
// When ctx ends the uploader breaks off. Errors: ErrPassing, or what is wrong for good.
func Ask(ctx context.Context, socket string, request Request, files ...*os.File) (*Answer, error) {
	return AskForParts(ctx, socket, request, noParts, nil, files...)
}

func noParts(path, part string) (*os.File, error) {
	return nil, fmt.Errorf("checkpoint %.200q has a part %.64q, and nobody asked for parts", path, part)
}

// AskPaced is Ask for a save whose pace may change before it is answered.
func AskPaced(ctx context.Context, socket string, request Request, paces <-chan Pace, files ...*os.File) (*Answer, error) {
	return ask(ctx, socket, request, paces, noParts, func(wire.Size) {}, files)
}

// Maker makes the file for a part of the checkpoint at a path. The caller keeps it open until the answer is there.
type Maker func(path, part string) (*os.File, error)

// AskForParts is Ask for a restore, whose checkpoint may come in parts. measured is told how large it is before there is room for
// it, and nil for nobody.
func AskForParts(ctx context.Context, socket string, request Request, maker Maker, measured func(wire.Size), files ...*os.File) (*Answer, error) {
	if measured == nil {
		measured = func(wire.Size) {}
	}
	return ask(ctx, socket, request, nil, maker, measured, files)
}

func ask(ctx context.Context, socket string, request Request, paces <-chan Pace, maker Maker, measured func(wire.Size), files []*os.File) (*Answer, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("%w: the uploader does not answer: %w", ErrPassing, err)
	}
	socketed, _ := conn.(*net.UnixConn)
	line := wire.NewConn(socketed)
	defer func() { _ = line.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = socketed.SetDeadline(time.Now()) })
	defer stop()
	if err := line.Write(request, files...); err != nil {
		return nil, fmt.Errorf("%w: ask the uploader: %w", ErrPassing, err)
	}
	if paces != nil {
		defer tell(line, paces)()
	}
	var answer *Answer
	for answer == nil || answer.Room > 0 {
		if answer != nil {
			if answer.Size != nil {
				measured(*answer.Size)
			}
			if err := makeRoom(line, answer, maker, files); err != nil {
				return nil, fmt.Errorf("%w: ask the uploader: %w", ErrPassing, err)
			}
		}
		text, err := line.ReadLine()
		if err != nil {
			return nil, fmt.Errorf("%w: the uploader has not answered: %w", ErrPassing, errors.Join(ctx.Err(), err))
		}
		answer = &Answer{}
		if err := json.Unmarshal(text, answer); err != nil {
			return nil, fmt.Errorf("the uploader's answer: %w", err)
		}
	}
	switch {
	case answer.Error != "" && answer.Passing:
		return nil, fmt.Errorf("%w: %s", ErrPassing, answer.Error)
	case answer.Error != "":
		return nil, errors.New(answer.Error)
	}
	return answer, nil
}

// tell passes on every pace that comes, until it is stopped. A line that cannot be written means that there is no answer either.
func tell(line *wire.Conn, paces <-chan Pace) (stop func()) {
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case pace := <-paces:
				_ = line.Write(pace)
			case <-stopped:
				return
			}
		}
	}()
	return func() {
		close(stopped)
		<-done
	}
}

// makeRoom gives the file that the answer asks for its room in memory, which is charged to the caller, and says so.
func makeRoom(line *wire.Conn, asked *Answer, maker Maker, files []*os.File) error {
	if asked.Part == "" {
		return line.Write(made(files, asked.Room))
	}
	file, err := maker(asked.Path, asked.Part)
	if err != nil {
		return line.Write(Made{Error: err.Error()})
	}
	if done := made([]*os.File{file}, asked.Room); done.Error != "" {
		return line.Write(done)
	}
	return line.Write(Made{Files: 1}, file)
}

func made(files []*os.File, bytes uint64) Made {
	if len(files) != 1 || bytes > checkpoint.MaxBytes {
		return Made{Error: fmt.Sprintf("it is said to have %d bytes", bytes)}
	}
	switch err := unix.Fallocate(int(files[0].Fd()), 0, 0, int64(bytes)); {
	case errors.Is(err, unix.ENOSPC):
		return Made{Error: fmt.Sprintf("the checkpoint has %d bytes, and spec.checkpoint.memory is too small for them", bytes)}
	case err != nil && !errors.Is(err, unix.EOPNOTSUPP):
		return Made{Error: fmt.Sprintf("make room for %d bytes: %v", bytes, err)}
	}
	return Made{}
}
