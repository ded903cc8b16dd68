package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/checkpoint/storage"
	v1 "github.com/concertina-dev/concertina/internal/uploader/uploaderv1"
	"github.com/concertina-dev/concertina/internal/uploader/uploaderv1/uploaderv1connect"
)

// statePart is the part that a snapshot is, as long as it is one file.
const statePart = "state"

// Uploader serves one job. Its calls may come at any time; saves come one after another.
type Uploader struct {
	storage *storage.Storage
	job     storage.Job
	attempt int32
	// folder is that of the snapshots.
	folder *os.Root
	note   func(format string, arguments ...any)
	// saving is taken by who saves.
	saving chan struct{}
}

var _ uploaderv1connect.UploaderHandler = (*Uploader)(nil)

// New serves the attempt of a job, whose snapshots are in a folder.
func New(s *storage.Storage, job storage.Job, attempt int32, folder *os.Root, note func(string, ...any)) *Uploader {
	return &Uploader{storage: s, job: job, attempt: attempt, folder: folder, note: note, saving: make(chan struct{}, 1)}
}

// Check implements uploaderv1connect.UploaderHandler.
func (u *Uploader) Check(ctx context.Context, _ *connect.Request[v1.CheckRequest]) (*connect.Response[v1.CheckResponse], error) {
	if err := u.storage.Check(ctx, u.job); err != nil {
		return nil, coded(err)
	}
	return connect.NewResponse(&v1.CheckResponse{}), nil
}

// Save implements uploaderv1connect.UploaderHandler.
func (u *Uploader) Save(ctx context.Context, request *connect.Request[v1.SaveRequest]) (*connect.Response[v1.SaveResponse], error) {
	snapshot, ok := snapshotOf(request.Msg.GetSnapshot())
	if !ok {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the snapshot to save is not described"))
	}
	select {
	case u.saving <- struct{}{}:
		defer func() { <-u.saving }()
	case <-ctx.Done():
		return nil, coded(ctx.Err())
	}
	place := storage.Place{Job: u.job, Attempt: u.attempt, ID: snapshot.ID}
	if err := u.save(ctx, place, snapshot, request.Msg.GetFile()); err != nil {
		return nil, coded(err)
	}
	u.note("checkpoint %s is durable", place.Path())
	// What is not deleted now is with the next one.
	if deleted, err := u.storage.Collect(ctx, u.job, int(request.Msg.GetKeep())); err != nil {
		u.note("delete old checkpoints: %v", err)
	} else if deleted > 0 {
		u.note("%d old checkpoints are deleted", deleted)
	}
	return connect.NewResponse(&v1.SaveResponse{Path: place.Path()}), nil
}

func (u *Uploader) save(ctx context.Context, place storage.Place, snapshot checkpoint.Snapshot, name string) error {
	file, err := u.open(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return u.storage.Save(ctx, place, []storage.File{{Key: statePart, Data: file, Snapshot: snapshot}})
}

// open opens a file of the folder, and nothing that only looks like one: a pipe would block.
func (u *Uploader) open(name string) (*os.File, error) {
	if name != filepath.Base(name) {
		return nil, fmt.Errorf("%w: %.100q is no name of a snapshot's file", fs.ErrInvalid, name)
	}
	file, err := u.folder.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%w: %.100q is no file", fs.ErrInvalid, name)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// Restore implements uploaderv1connect.UploaderHandler.
func (u *Uploader) Restore(ctx context.Context, request *connect.Request[v1.RestoreRequest]) (*connect.Response[v1.RestoreResponse], error) {
	path, name := strings.Trim(request.Msg.GetPath(), "/"), request.Msg.GetFile()
	own := path == ""
	if own {
		path = strings.Join([]string{u.job.Namespace, u.job.Name, u.job.UID}, "/")
	}
	if name != filepath.Base(name) || strings.Contains("/"+path+"/", "/../") {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("restore %.200q to %.100q: these are no names", path, name))
	}
	places, err := u.storage.Find(ctx, path)
	if err != nil {
		return nil, coded(err)
	}
	answer := &v1.RestoreResponse{}
	for _, place := range places {
		snapshot, err := u.restore(ctx, place, name)
		if err == nil {
			u.note("checkpoint %s is restored", place.Path())
			answer.Path, answer.Own, answer.Snapshot = place.Path(), place.Job == u.job, snapshot
			return connect.NewResponse(answer), nil
		}
		if !unusable(err) {
			return nil, coded(err)
		}
		u.note("%v", err)
		answer.Refused = append(answer.Refused, err.Error())
	}
	return connect.NewResponse(answer), nil
}

// unusable says whether an older checkpoint should be tried: nothing that is wrong with the storage or here.
func unusable(err error) bool {
	return !errors.Is(err, storage.ErrRefused) && !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, context.DeadlineExceeded)
}

func (u *Uploader) restore(ctx context.Context, place storage.Place, name string) (_ *v1.Snapshot, err error) {
	reading, err := u.storage.Read(ctx, place)
	if err != nil {
		return nil, err
	}
	defer func() {
		if gone := reading.Close(context.WithoutCancel(ctx)); gone != nil {
			u.note("let go of checkpoint %s: %v", place.Path(), gone)
		}
	}()
	snapshot, err := reading.Snapshot(statePart)
	if err != nil {
		return nil, err
	}
	if err := u.folder.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	file, err := u.folder.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o660)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err = errors.Join(err, file.Close()); err != nil {
			_ = u.folder.Remove(name)
		}
	}()
	if err := reading.Load(ctx, statePart, file); err != nil {
		return nil, err
	}
	return &v1.Snapshot{Round: snapshot.Round, Step: snapshot.Step, Bytes: snapshot.Bytes, Hash: snapshot.Hash[:]}, nil
}

func snapshotOf(s *v1.Snapshot) (checkpoint.Snapshot, bool) {
	if s == nil || len(s.GetHash()) != len(checkpoint.Hash{}) {
		return checkpoint.Snapshot{}, false
	}
	return checkpoint.Snapshot{
		ID: checkpoint.ID{Round: s.GetRound(), Step: s.GetStep()}, Bytes: s.GetBytes(), Hash: checkpoint.Hash(s.GetHash()),
	}, true
}

// coded gives an error the code that says what the agent can do about it.
func coded(err error) error {
	code := connect.CodeUnavailable
	switch {
	case errors.Is(err, storage.ErrRefused) || errors.Is(err, fs.ErrPermission):
		code = connect.CodePermissionDenied
	case errors.Is(err, fs.ErrInvalid):
		code = connect.CodeInvalidArgument
	case errors.Is(err, storage.ErrDropped):
		code = connect.CodeAborted
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, storage.ErrNotFound):
		code = connect.CodeNotFound
	case errors.Is(err, syscall.ENOSPC):
		code = connect.CodeResourceExhausted
	case errors.Is(err, context.Canceled):
		code = connect.CodeCanceled
	}
	return connect.NewError(code, err)
}
