package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/checkpoint/storage"
	"github.com/concertina-dev/concertina/internal/score"
	"github.com/concertina-dev/concertina/internal/share"
	"github.com/concertina-dev/concertina/internal/uploader"
)

// statePart is the part that a snapshot is, as long as it is one file.
const statePart = "state"

// maxParts is the largest number of parts of a checkpoint: its shares, or its shards, and what differs by rank.
const maxParts = share.MostParts

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
	// best are the checkpoints that stay for their scores.
	best score.Best
	note func(format string, arguments ...any)
	// saving is taken by who saves, tidying by who deletes.
	saving  chan struct{}
	tidying sync.Mutex
	// unopened is why there is no storage; nil when there is.
	unopened error
}

// New serves the attempt of a job, which may begin with a checkpoint of its own, or with one below from: every program of
// the pod can ask, and what the credentials reach beyond that is other jobs'. best are those that stay for their scores.
func New(s *storage.Storage, job storage.Job, attempt int32, from string, best score.Best, note func(string, ...any)) *Uploader {
	return &Uploader{
		storage: s, job: job, attempt: attempt, from: strings.Trim(from, "/"), best: best, note: note, saving: make(chan struct{}, 1),
	}
}

// Unopened answers every request with why the storage could not be opened.
func Unopened(why error) *Uploader { return &Uploader{unopened: fmt.Errorf("%w: %w", errAsked, why)} }

// answer carries a request out. room has its caller give a file the room that a restore needs.
func (u *Uploader) answer(ctx context.Context, request *uploader.Request, files []*os.File, room room) uploader.Answer {
	var answer uploader.Answer
	var err error
	switch {
	case u.unopened != nil:
		err = u.unopened
	case request.Ask == uploader.AskCheck:
		err = u.storage.Check(ctx, u.job)
	case request.Ask == uploader.AskFinish && request.Snapshot != nil:
		answer.Path, err = u.finish(ctx, request)
	case request.Ask == uploader.AskScore && request.Snapshot != nil && request.Score != nil:
		answer.Path, err = u.score(ctx, request)
	case request.Ask == uploader.AskBest:
		answer.Best, err = u.listBest(ctx)
	case len(files) == 0:
		err = fmt.Errorf("%w: %.40q comes without a file", errAsked, request.Ask)
	case request.Ask == uploader.AskSave && request.Snapshot != nil:
		answer.Path, err = u.save(ctx, request, files[0])
	case request.Ask == uploader.AskPut && request.Snapshot != nil && len(request.Parts) == 1:
		answer.Path, err = u.put(ctx, request, files[0])
	case request.Ask == uploader.AskRestore:
		answer, err = u.restore(ctx, request, files[0], room)
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

// turn waits until nobody else saves; the caller calls done then.
func (u *Uploader) turn(ctx context.Context) (done func(), err error) {
	select {
	case u.saving <- struct{}{}:
		return func() { <-u.saving }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// pace takes note of how fast it may upload from now on.
func (u *Uploader) pace(p uploader.Pace) {
	if p.Rate != nil && u.storage != nil {
		u.storage.Limit(*p.Rate)
	}
}

// place is where a snapshot goes.
func (u *Uploader) place(s *uploader.Snapshot) storage.Place {
	return storage.Place{Job: u.job, Attempt: u.attempt, ID: s.Snapshot().ID}
}

func (u *Uploader) save(ctx context.Context, request *uploader.Request, file *os.File) (path string, err error) {
	done, err := u.turn(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	place := u.place(request.Snapshot)
	if err := u.storage.Save(ctx, place, []storage.File{{Key: statePart, Data: file, Snapshot: request.Snapshot.Snapshot()}}); err != nil {
		return "", err
	}
	u.note("checkpoint %s is durable", place.Path())
	return place.Path(), nil
}

func (u *Uploader) put(ctx context.Context, request *uploader.Request, file *os.File) (path string, err error) {
	part := &request.Parts[0]
	if _, ok := share.Parse(part.Key); !ok {
		return "", fmt.Errorf("%w: a part is named %.64q", errAsked, part.Key)
	}
	done, err := u.turn(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	place := u.place(request.Snapshot)
	return place.Path(), u.storage.Put(ctx, place, storage.File{Key: part.Key, Data: file, Snapshot: part.Of(place.ID)})
}

func (u *Uploader) finish(ctx context.Context, request *uploader.Request) (path string, err error) {
	if len(request.Parts) == 0 || len(request.Parts) > maxParts {
		return "", fmt.Errorf("%w: a checkpoint of %d parts", errAsked, len(request.Parts))
	}
	keys := make([]string, len(request.Parts))
	for i := range keys {
		keys[i] = request.Parts[i].Key
	}
	if !share.Whole(keys) {
		return "", fmt.Errorf("%w: a checkpoint of %d parts that make no whole state", errAsked, len(keys))
	}
	done, err := u.turn(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	place := u.place(request.Snapshot)
	parts := make([]checkpoint.Snapshot, len(request.Parts))
	for i := range parts {
		parts[i] = request.Parts[i].Of(place.ID)
	}
	if err := u.storage.Finish(ctx, place, parts); err != nil {
		return "", err
	}
	u.note("checkpoint %s is durable, in %d parts", place.Path(), len(parts))
	return place.Path(), nil
}

// score puts the score of a snapshot beside it.
func (u *Uploader) score(ctx context.Context, request *uploader.Request) (path string, err error) {
	if u.best.Keep == 0 {
		return "", fmt.Errorf("%w: a score, and spec.checkpoint.storage.best was not there when this worker was made", errAsked)
	}
	place := u.place(request.Snapshot)
	if err := u.storage.Score(ctx, place, u.best.Metric, *request.Score); err != nil {
		return "", err
	}
	u.note("checkpoint %s: %s is %s", place.Path(), u.best.Metric, score.Text(*request.Score))
	return place.Path(), nil
}

// listBest lists the checkpoints that stay for their scores.
func (u *Uploader) listBest(ctx context.Context) ([]uploader.Kept, error) {
	if u.best.Keep == 0 {
		return nil, fmt.Errorf("%w: the best checkpoints, and spec.checkpoint.storage.best was not there when this worker was made", errAsked)
	}
	found, err := u.storage.Best(ctx, u.job, u.best)
	if err != nil {
		return nil, err
	}
	kept := make([]uploader.Kept, len(found))
	for i := range kept {
		place := &found[i].Place
		kept[i] = uploader.Kept{Round: place.Round, Step: place.Step, Path: place.Path(), Score: found[i].Score}
	}
	return kept, nil
}

// tidy deletes old checkpoints, when a new one is durable and its worker knows: there may be thousands of objects to
// delete. What is not deleted now is with the next one.
func (u *Uploader) tidy(ctx context.Context, keep int) {
	if !u.tidying.TryLock() {
		return
	}
	defer u.tidying.Unlock()
	if deleted, err := u.storage.Collect(ctx, u.job, keep, u.best); err != nil {
		u.note("delete old checkpoints: %v", err)
	} else if deleted > 0 {
		u.note("%d old checkpoints are deleted", deleted)
	}
}

// room has the worker make the room that is asked for; see askForRoom.
type room func(need uploader.Answer) (*os.File, error)

func (u *Uploader) restore(ctx context.Context, request *uploader.Request, file *os.File, room room) (uploader.Answer, error) {
	path, own := strings.Trim(request.Path, "/"), strings.Join([]string{u.job.Namespace, u.job.Name, u.job.UID}, "/")
	parts := len(request.Parts) > 0
	within := func(of string) bool { return strings.HasPrefix(path+"/", of+"/") }
	switch {
	case strings.Contains("/"+path+"/", "/../"):
		return uploader.Answer{}, fmt.Errorf("%w: restore %.200q", errAsked, path)
	case path == "" && !parts:
		path = own
	case u.from != "" && within(u.from) || parts && within(own):
	default:
		return uploader.Answer{}, fmt.Errorf("%w: restore %.200q, this job begins with a checkpoint of its own or of spec.checkpoint.restoreFrom", errAsked, path)
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
		if slices.Contains(request.Without, place.Path()) {
			continue
		}
		err := u.load(ctx, place, request, &answer, file, room)
		if err == nil {
			u.note("checkpoint %s is restored", place.Path())
			answer.Path, answer.Own = place.Path(), place.Job == u.job
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

// unusable says whether it is the checkpoint itself that cannot be used, so that an older one should be tried. Whatever
// else is wrong may pass: nobody goes back further than it must because the storage was away for a while.
func unusable(err error) bool {
	for _, its := range []error{storage.ErrNotFound, storage.ErrDropped, storage.ErrNewer, storage.ErrDamaged} {
		if errors.Is(err, its) {
			return true
		}
	}
	return false
}

// load brings one checkpoint, and says in the answer what it is.
func (u *Uploader) load(
	ctx context.Context, place storage.Place, request *uploader.Request, answer *uploader.Answer, file *os.File, room room,
) error {
	reading, err := u.storage.Read(ctx, place)
	if err != nil {
		return err
	}
	defer func() {
		if err := reading.Close(context.WithoutCancel(ctx)); err != nil {
			u.note("let go of checkpoint %s: %v", place.Path(), err)
		}
	}()
	keys := reading.Keys()
	if len(keys) != 1 || keys[0] != statePart {
		answer.Parts, answer.Of, err = u.loadParts(ctx, reading, keys, request, room)
		if err == nil {
			answer.Snapshot = &uploader.Snapshot{Round: place.Round, Step: place.Step}
		}
		return err
	}
	snapshot, err := reading.Snapshot(statePart)
	if err == nil && len(request.Parts) > 0 {
		err = fmt.Errorf("checkpoint %s: %w: it is in no parts", reading.Path(), storage.ErrDamaged)
	}
	if err != nil {
		return err
	}
	if err := file.Truncate(0); err != nil {
		return err
	}
	size := &wire.Size{State: snapshot.Bytes, Own: snapshot.Bytes}
	if _, err := room(uploader.Answer{Room: max(1, snapshot.Bytes), Size: size}); err != nil {
		return err
	}
	if err := file.Truncate(int64(snapshot.Bytes)); err != nil {
		return err
	}
	if err := reading.Load(ctx, statePart, file); err != nil {
		return err
	}
	answer.Snapshot = uploader.SnapshotOf(snapshot)
	return nil
}

// loadParts brings the parts of a checkpoint that are asked for, each to a file of its own; of are those that it has besides.
func (u *Uploader) loadParts(
	ctx context.Context, reading *storage.Reading, keys []string, request *uploader.Request, room room,
) (parts, of []uploader.Part, err error) {
	if len(keys) > maxParts {
		return nil, nil, fmt.Errorf("checkpoint %s: %w: it has %d parts", reading.Path(), storage.ErrDamaged, len(keys))
	}
	if !share.Whole(keys) {
		return nil, nil, fmt.Errorf("checkpoint %s: %w: its %d parts make no whole state", reading.Path(), storage.ErrDamaged, len(keys))
	}
	var all []checkpoint.Snapshot
	for _, key := range keys {
		part, err := reading.Snapshot(key)
		if err != nil {
			return nil, nil, err
		}
		part.Part = key
		all = append(all, part)
	}
	wanted, err := wantedOf(all, request)
	if err != nil {
		return nil, nil, fmt.Errorf("checkpoint %s: %w", reading.Path(), err)
	}
	for size, i := sizeOf(all), 0; i < len(wanted); i++ {
		if err := u.loadPart(ctx, reading, wanted[i], size, room); err != nil {
			return nil, nil, err
		}
		parts = append(parts, uploader.PartOf(wanted[i]))
	}
	for i := range all {
		if !slices.Contains(wanted, all[i]) {
			of = append(of, uploader.PartOf(all[i]))
		}
	}
	return parts, of, nil
}

// wantedOf are those of a checkpoint's parts that a request asks for.
func wantedOf(all []checkpoint.Snapshot, request *uploader.Request) ([]checkpoint.Snapshot, error) {
	if len(request.Parts) == 0 {
		return slices.DeleteFunc(slices.Clone(all), func(part checkpoint.Snapshot) bool { return request.Apart && share.IsShard(part.Part) }), nil
	}
	var wanted []checkpoint.Snapshot
	for i := range request.Parts {
		part := request.Parts[i].Of(all[0].ID)
		if !slices.Contains(all, part) {
			return nil, fmt.Errorf("%w: it has no part %.64q of %d bytes with the hash %x", storage.ErrDamaged, part.Part, part.Bytes, part.Hash)
		}
		wanted = append(wanted, part)
	}
	return wanted, nil
}

// sizeOf is how large the state of one worker is that comes in these parts: all shares, and what differs by rank, once.
func sizeOf(parts []checkpoint.Snapshot) *wire.Size {
	size := &wire.Size{}
	for i := range parts {
		key, _ := share.Parse(parts[i].Part)
		switch {
		case key.Rank:
			size.Own = max(size.Own, parts[i].Bytes)
			continue
		case key.Shard:
			size.Shards += parts[i].Bytes
		}
		size.State += parts[i].Bytes
	}
	size.State += size.Own
	return size
}

func (u *Uploader) loadPart(ctx context.Context, reading *storage.Reading, part checkpoint.Snapshot, size *wire.Size, room room) error {
	file, err := room(uploader.Answer{Room: max(1, part.Bytes), Part: part.Part, Path: reading.Path(), Size: size})
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if err := file.Truncate(int64(part.Bytes)); err != nil {
		return err
	}
	return reading.Load(ctx, part.Part, file)
}
