package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/concertina-dev/concertina/internal/checkpoint/storage"
	"github.com/concertina-dev/concertina/internal/uploader"
)

// statePart is the part that a snapshot is, as long as it is one file.
const statePart = "state"

// maxRefused is how many checkpoints that could not be used are named.
const maxRefused = 8

var (
	// errAsked marks requests that can never be carried out.
	errAsked = errors.New("this cannot be asked")
	// errNoRoom marks that the worker has no room for a checkpoint.
	errNoRoom = errors.New("the worker has no room for it")
)

// Uploader serves one attempt of a job. Requests may come at any time; saves are carried out one after another.
type Uploader struct {
	storage *storage.Storage
	job     storage.Job
	attempt int32
	// from is the other place that a checkpoint is restored from; empty for none.
	from string
	note func(format string, arguments ...any)
	// saving is taken by who saves.
	saving chan struct{}
	// unopened is why there is no storage; nil when there is.
	unopened error
}

// New serves the attempt of a job, which may begin with a checkpoint of its own, or with one below from: every program of
// the pod can ask, and what the credentials reach beyond that is other jobs'.
func New(s *storage.Storage, job storage.Job, attempt int32, from string, note func(string, ...any)) *Uploader {
	return &Uploader{storage: s, job: job, attempt: attempt, from: strings.Trim(from, "/"), note: note, saving: make(chan struct{}, 1)}
}

// Unopened answers every request with why the storage could not be opened.
func Unopened(why error) *Uploader { return &Uploader{unopened: fmt.Errorf("%w: %w", errAsked, why)} }

// answer carries a request out. room has its caller give a file the room that a restore needs.
func (u *Uploader) answer(ctx context.Context, request *uploader.Request, file *os.File, room room) uploader.Answer {
	var answer uploader.Answer
	var err error
	switch {
	case u.unopened != nil:
		err = u.unopened
	case request.Ask == uploader.AskCheck:
		err = u.storage.Check(ctx, u.job)
	case file == nil:
		err = fmt.Errorf("%w: %.40q comes without a file", errAsked, request.Ask)
	case request.Ask == uploader.AskSave && request.Snapshot != nil:
		answer.Path, err = u.save(ctx, request, file)
	case request.Ask == uploader.AskRestore:
		answer, err = u.restore(ctx, request.Path, file, room)
	default:
		err = fmt.Errorf("%w: %.40q", errAsked, request.Ask)
	}
	if err != nil {
		return uploader.Answer{Error: err.Error(), Passing: passing(err)}
	}
	return answer
}

// passing says whether an error may be gone when the same is asked again.
func passing(err error) bool {
	for _, final := range []error{errAsked, storage.ErrRefused, storage.ErrDropped, storage.ErrNewer, fs.ErrPermission, syscall.ENOSPC, errNoRoom} {
		if errors.Is(err, final) {
			return false
		}
	}
	return true
}

func (u *Uploader) save(ctx context.Context, request *uploader.Request, file *os.File) (path string, err error) {
	select {
	case u.saving <- struct{}{}:
		defer func() { <-u.saving }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	snapshot := request.Snapshot.Snapshot()
	place := storage.Place{Job: u.job, Attempt: u.attempt, ID: snapshot.ID}
	if err := u.storage.Save(ctx, place, []storage.File{{Key: statePart, Data: file, Snapshot: snapshot}}); err != nil {
		return "", err
	}
	u.note("checkpoint %s is durable", place.Path())
	// What is not deleted now is with the next one.
	if deleted, err := u.storage.Collect(ctx, u.job, request.Keep); err != nil {
		u.note("delete old checkpoints: %v", err)
	} else if deleted > 0 {
		u.note("%d old checkpoints are deleted", deleted)
	}
	return place.Path(), nil
}

// room has the worker give the file of a restore so many bytes.
type room func(bytes uint64) error

func (u *Uploader) restore(ctx context.Context, path string, file *os.File, room room) (uploader.Answer, error) {
	path = strings.Trim(path, "/")
	if path != "" && path != u.from {
		return uploader.Answer{}, fmt.Errorf("%w: restore %.200q, this job begins with a checkpoint of its own or of spec.checkpoint.restoreFrom", errAsked, path)
	}
	if path == "" {
		path = strings.Join([]string{u.job.Namespace, u.job.Name, u.job.UID}, "/")
	}
	if strings.Contains("/"+path+"/", "/../") {
		return uploader.Answer{}, fmt.Errorf("%w: restore %.200q", errAsked, path)
	}
	// What is about to begin would be lost with a storage that takes nothing. Nothing is repeated in silence here: whoever
	// waits for the restore tells why, and asks again.
	if err := u.storage.WithPatience(0).Check(ctx, u.job); err != nil {
		return uploader.Answer{}, err
	}
	places, err := u.storage.Find(ctx, path)
	if err != nil {
		return uploader.Answer{}, err
	}
	var answer uploader.Answer
	for _, place := range places {
		snapshot, err := u.load(ctx, place, file, room)
		if err == nil {
			u.note("checkpoint %s is restored", place.Path())
			answer.Path, answer.Own, answer.Snapshot = place.Path(), place.Job == u.job, snapshot
			return answer, nil
		}
		if !unusable(err) {
			return uploader.Answer{}, err
		}
		u.note("%v", err)
		if len(answer.Refused) < maxRefused {
			answer.Refused = append(answer.Refused, err.Error())
		}
	}
	return answer, nil
}

// unusable says whether an older checkpoint should be tried: nothing is wrong with the storage, or here.
func unusable(err error) bool {
	for _, elsewhere := range []error{storage.ErrRefused, syscall.ENOSPC, errNoRoom, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, elsewhere) {
			return false
		}
	}
	return true
}

func (u *Uploader) load(ctx context.Context, place storage.Place, file *os.File, room room) (*uploader.Snapshot, error) {
	reading, err := u.storage.Read(ctx, place)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err := reading.Close(context.WithoutCancel(ctx)); err != nil {
			u.note("let go of checkpoint %s: %v", place.Path(), err)
		}
	}()
	snapshot, err := reading.Snapshot(statePart)
	if err != nil {
		return nil, err
	}
	if err := file.Truncate(0); err != nil {
		return nil, err
	}
	if err := room(snapshot.Bytes); err != nil {
		return nil, err
	}
	if err := reading.Load(ctx, statePart, file); err != nil {
		return nil, err
	}
	return uploader.SnapshotOf(snapshot), nil
}
