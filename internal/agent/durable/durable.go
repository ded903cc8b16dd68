// Package durable is what the agent does about checkpoints in storage: it has the uploader beside it save the snapshot
// that the operator has chosen, and bring back the one that a first world is to begin with.
package durable

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/share"
	"github.com/concertina-dev/concertina/internal/uploader"
)

// Save is a snapshot that is to be made durable, or what this worker does of that, and how many checkpoints to keep.
type Save struct {
	Snapshot checkpoint.Snapshot
	Keep     int
	// Put are the parts that it puts into the storage, Manifest all that there are, once they were put and this worker is to
	// write the manifest. Without either the snapshot is one file, which it makes durable by itself.
	Put, Manifest []checkpoint.Snapshot
	// Rate is how many bytes may be uploaded in a second, 0 for all that is possible.
	Rate uint64
	// Score is put beside it, before it is complete; nil for none. With Durable it is complete, and lacks only that.
	Score   *float64
	Durable bool
}

// Saved is the newest snapshot that this worker has made durable, and where it is.
type Saved struct {
	Snapshot checkpoint.Snapshot
	Path     string
	// Score is what was put beside it; nil for nothing.
	Score *float64
}

// has says whether it is of a snapshot, and has the score that is to lie there.
func (s *Saved) has(of checkpoint.Snapshot, score *float64) bool {
	return s != nil && s.Snapshot == of && (score == nil || s.Score != nil && *s.Score == *score)
}

// Restore asks for the newest checkpoint below a path of the storage; of this job when it is empty. A number is
// carried out once.
type Restore struct {
	Number uint64
	Path   string
	// Apart leaves the shards of a state in shards where they are. With Parts these are all that is brought, of the checkpoint at
	// Path. Without are the paths of those that cannot be used.
	Apart   bool
	Parts   []checkpoint.Snapshot
	Without []string
}

// same says whether another order asks for the same.
func (r *Restore) same(other *Restore) bool {
	return r.Path == other.Path && r.Apart == other.Apart && slices.Equal(r.Parts, other.Parts) && slices.Equal(r.Without, other.Without)
}

// Restored is what has come of a Restore. Its zero value is nothing yet.
type Restored struct {
	Number uint64
	// Snapshot is what the worker holds now; nil when there is no checkpoint, or Why says what went wrong for good. Parts are
	// what the worker holds of it; it has neither size nor hash then. Of is all that it is made of, where that is more. Without a
	// Snapshot the Path is that of the checkpoint whose Parts were asked for, if any were.
	Snapshot  *checkpoint.Snapshot
	Parts, Of []checkpoint.Snapshot
	Path      string
	// Refused are newer checkpoints that could not be used, in words.
	Refused []string
	Why     string
}

// Pauses are the waits before what failed is tried again; they double from First to Last. Unwanted is how long a save may go on
// that nobody wants any more, Quiet how long nothing may come of a restore before that is told; 0 for ever.
type Pauses struct{ First, Last, Unwanted, Quiet time.Duration }

// DefaultPauses are those of a worker.
func DefaultPauses() Pauses {
	return Pauses{time.Second, 30 * time.Second, 15 * time.Minute, 30 * time.Second}
}

// Holder is the store of the worker's snapshots.
type Holder interface {
	// Open opens a file that is held. Pin has files that are held stay until Discard, also when they are held no more, and returns
	// their paths by then. Make makes a file for a snapshot that is not held yet.
	Open(id checkpoint.ID) (*os.File, error)
	Pin(ids ...checkpoint.ID) ([]string, error)
	Make() (*os.File, error)
	// Restored takes over a file of Make as a snapshot, Discard removes one of Make or of Pin, by its name. Forget removes what was
	// taken over.
	Restored(id checkpoint.ID, file string, bytes uint64) (checkpoint.Snapshot, error)
	Discard(file string)
	Forget(ids ...checkpoint.ID)
	// Has says whether a file is held, and as it was when it came.
	Has(of checkpoint.Snapshot) bool
	// Announced is told how large the state of a checkpoint is that is about to be brought.
	Announced(size share.Size)
}

// Keeper carries out the newest orders, one save and one restore at a time. Its methods return at once, but for Close.
type Keeper struct {
	// socket is that of the uploader.
	socket string
	holder Holder
	pauses Pauses
	note   func(format string, arguments ...any)
	// changed is called when State has changed.
	changed func()

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu sync.Mutex
	// wanted is what is to be saved; nil for nothing. saving is true while a save runs, and at is the file, or the checkpoint,
	// that the uploader has of it.
	wanted *Save
	saving bool
	at     *errand
	// rate is that of the last order.
	rate  uint64
	state State
	// asked is the newest Restore; of number 0 for none. restoring is the one that runs; nil for none.
	asked     Restore
	restoring *bringing
	// portion is what was brought of a checkpoint in parts.
	portion Restored
	// begun is the last world that was seen to begin.
	begun uint64
	// listing is the newest order of List.
	listing listing
}

// errUnwanted is what comes of a save that was ended because others are wanted.
var errUnwanted = errors.New("another checkpoint is wanted by now")

// errand is a request to the uploader for a save; late ends it a while after others are wanted and it is not any more, nil as long
// as it is wanted, or nothing is.
type errand struct {
	of     checkpoint.Snapshot
	cancel context.CancelFunc
	// paces takes the newest pace, which the uploader is still to be told of.
	paces chan uploader.Pace
	late  *time.Timer
}

// bringing is a restore that runs.
type bringing struct {
	order  Restore
	cancel context.CancelFunc
}

// State is what is reported.
type State struct {
	// Saved is nil before the first.
	Saved *Saved
	// Put are the parts of the last Save that were put.
	Put []checkpoint.Snapshot
	// Failure is why the last save has not come to an end yet; empty for none.
	Failure  string
	Restored Restored
	// Waiting is why the last restore has not come to an end yet; empty for none. Bringing is true while one runs that was asked for.
	Waiting  string
	Bringing bool
	// Listed are the best checkpoints in the storage, for the newest order of List.
	Listed Listed
}

// New makes a Keeper that speaks to the uploader at a socket.
func New(socket string, holder Holder, pauses Pauses, note func(string, ...any), changed func()) *Keeper {
	k := &Keeper{socket: socket, holder: holder, pauses: pauses, note: note, changed: changed}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	return k
}

// Close breaks off what is under way.
func (k *Keeper) Close() error {
	k.mu.Lock()
	k.cancel()
	k.mu.Unlock()
	k.work.Wait()
	return nil
}

// State is what has come of the orders so far.
func (k *Keeper) State() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	state := k.state
	state.Bringing = k.restoring != nil && k.asked.Number != state.Restored.Number
	return state
}

// Ask takes the orders of a directive: all that is wanted now. A save that runs goes on also when another one is wanted by
// then, for a while: one that is broken off for ever never ends, and one that hangs must not keep the others waiting for ever.
//
// Restores are carried out one at a time: there is room for one. One that an earlier leader has asked for, or none asks for any
// more, goes on; it answers the newest order when that is for the same, and gives way to one for something else.
func (k *Keeper) Ask(save *Save, restore *Restore) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() != nil {
		return
	}
	k.wanted = save
	if save != nil && save.Rate != k.rate {
		k.rate = save.Rate
		k.at.hurry(k.rate)
		k.at.anew()
	}
	k.watch()
	if save != nil && (len(k.state.Put) == 0 || k.state.Put[0].State() != save.Snapshot.State()) {
		k.state.Put = nil
	}
	if save != nil && !k.saving && !k.done(save) {
		k.saving = true
		k.work.Go(k.saveAll)
	}
	if restore == nil || restore.Number == k.asked.Number {
		return
	}
	k.asked = *restore
	switch {
	case k.restoring == nil:
		k.restoring = &bringing{*restore, func() {}}
		k.work.Go(k.restoreAll)
	case !k.restoring.order.same(restore):
		k.restoring.cancel()
	}
}

// Begun says that a world begins, or is about to, with round 0: a restore that still runs is not wanted any more, and what it has taken
// is room that the snapshot of the world may need. Each begins once: that a later operator names it, which has yet to find out that it
// is broken, ends nothing that is brought for the one after it.
func (k *Keeper) Begun(round uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	begins := round == 0 || round > k.begun
	k.begun = max(k.begun, round)
	if begins && k.restoring != nil {
		k.asked = Restore{}
		k.restoring.cancel()
	}
}

// watch looks whether what the uploader has is wanted; k.mu is held.
func (k *Keeper) watch() {
	at := k.at
	if at == nil {
		return
	}
	hinders := k.wanted != nil && k.wanted.Snapshot != at.of && !slices.Contains(k.wanted.Put, at.of)
	switch {
	case !hinders && at.late != nil:
		at.late.Stop()
		at.late = nil
	case hinders && at.late == nil:
		at.late = time.AfterFunc(k.pauses.Unwanted+k.paced(at.of.Bytes), at.cancel)
	}
}

// paced is how long so many bytes take because of the rate alone; k.mu is held.
func (k *Keeper) paced(bytes uint64) time.Duration {
	if k.rate == 0 {
		return 0
	}
	return time.Duration(min(float64(bytes)/float64(k.rate), longest.Seconds()) * float64(time.Second))
}

// longest bounds a wait.
const longest = 365 * 24 * time.Hour

// hurry tells the uploader that another rate counts by now; it does nothing where nothing is under way.
func (e *errand) hurry(rate uint64) {
	if e == nil {
		return
	}
	select {
	case <-e.paces: // it counts no more
	default:
	}
	e.paces <- uploader.Pace{Rate: &rate}
}

// anew takes back when it is to end, since that depends on the rate; not once its end has come.
func (e *errand) anew() {
	if e != nil && e.late != nil && e.late.Stop() {
		e.late = nil
	}
}

// ask has the uploader do something for a save.
func (k *Keeper) ask(of checkpoint.Snapshot, request uploader.Request, files ...*os.File) (*uploader.Answer, error) {
	ctx, cancel := context.WithCancel(k.ctx)
	defer cancel()
	k.mu.Lock()
	rate, paces := k.rate, make(chan uploader.Pace, 1)
	request.Rate = &rate
	k.at = &errand{of: of, cancel: cancel, paces: paces}
	k.watch()
	k.mu.Unlock()
	answer, err := uploader.AskPaced(ctx, k.socket, request, paces, files...)
	k.mu.Lock()
	defer k.mu.Unlock()
	if late := k.at.late; late != nil && !late.Stop() && err != nil {
		err = errUnwanted
	}
	k.at = nil
	return answer, err
}

// done says whether nothing of an order is left to do.
func (k *Keeper) done(save *Save) bool {
	if len(save.Put) > 0 && len(save.Manifest) == 0 {
		return len(k.left(save)) == 0
	}
	return k.state.Saved.has(save.Snapshot, save.Score)
}

// left are the parts that are still to be put.
func (k *Keeper) left(save *Save) []checkpoint.Snapshot {
	return slices.DeleteFunc(slices.Clone(save.Put), func(part checkpoint.Snapshot) bool { return slices.Contains(k.state.Put, part) })
}

// saveAll saves what is wanted until nothing is.
func (k *Keeper) saveAll() {
	pause := k.pauses.First
	for {
		k.mu.Lock()
		if k.wanted == nil || k.done(k.wanted) || k.ctx.Err() != nil {
			k.saving = false
			k.mu.Unlock()
			return
		}
		order := *k.wanted
		k.mu.Unlock()
		path, err := k.carryOut(&order)
		k.mu.Lock()
		if err != nil && (k.wanted == nil || k.wanted.Snapshot != order.Snapshot || errors.Is(err, errUnwanted)) {
			k.mu.Unlock()
			continue // nobody waits for it any more
		}
		if err != nil {
			k.state.Failure = err.Error()
		} else {
			k.state.Failure, pause = "", k.pauses.First
		}
		if path != "" {
			k.state.Saved = &Saved{order.Snapshot, path, order.Score}
		}
		k.mu.Unlock()
		k.changed()
		if err != nil {
			k.note("checkpoint of step %d is not durable, trying again in %v: %s", order.Snapshot.Step, pause, err.Error())
			k.wait(k.ctx, pause)
			pause = min(2*pause, k.pauses.Last)
		}
	}
}

// carryOut does what an order asks for. The path is empty as long as that is not all of the checkpoint. A score that the storage
// refuses for good is taken out of the order: a checkpoint without it is better than none.
func (k *Keeper) carryOut(order *Save) (path string, err error) {
	// The score comes before the manifest: one that is killed between the two leaves no checkpoint whose score nobody knows.
	if order.Score != nil {
		path, err = k.score(order)
		k.mu.Lock()
		there := order.Durable || k.state.Saved.has(order.Snapshot, nil)
		k.mu.Unlock()
		if there || errors.Is(err, uploader.ErrPassing) {
			return path, err
		}
		if err != nil {
			k.note("checkpoint of step %d has no score: %v", order.Snapshot.Step, err)
			order.Score = nil
		}
	}
	return k.upload(*order)
}

// score puts the score of a snapshot into the storage.
func (k *Keeper) score(order *Save) (path string, err error) {
	request := uploader.Request{Ask: uploader.AskScore, Snapshot: uploader.SnapshotOf(order.Snapshot), Score: order.Score}
	answer, err := k.ask(order.Snapshot, request)
	if err != nil {
		return "", err
	}
	return answer.Path, nil
}

// upload does all of an order but for the score.
func (k *Keeper) upload(order Save) (path string, err error) {
	if len(order.Put) == 0 && len(order.Manifest) == 0 {
		return k.save(order)
	}
	if err := k.put(order); err != nil || len(order.Manifest) == 0 {
		return "", err
	}
	request := uploader.Request{Ask: uploader.AskFinish, Snapshot: uploader.SnapshotOf(order.Snapshot), Keep: order.Keep}
	for _, part := range order.Manifest {
		request.Parts = append(request.Parts, uploader.PartOf(part))
	}
	answer, err := k.ask(order.Snapshot, request)
	if err != nil {
		return "", err
	}
	return answer.Path, nil
}

// save makes a snapshot durable that is one file.
func (k *Keeper) save(order Save) (path string, err error) {
	file, err := k.holder.Open(order.Snapshot.ID)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	request := uploader.Request{Ask: uploader.AskSave, Snapshot: uploader.SnapshotOf(order.Snapshot), Keep: order.Keep}
	answer, err := k.ask(order.Snapshot, request, file)
	if err != nil {
		return "", err
	}
	return answer.Path, nil
}

// put puts what is left of an order's parts. All of them are pinned first, so that what is held no more meanwhile is put all the
// same, and one is open at a time: there may be hundreds.
func (k *Keeper) put(order Save) error {
	k.mu.Lock()
	parts := k.left(&order)
	k.mu.Unlock()
	ids := make([]checkpoint.ID, len(parts))
	for i := range parts {
		ids[i] = parts[i].ID
	}
	pins, err := k.holder.Pin(ids...)
	if err != nil {
		return err
	}
	for i := range parts {
		if err == nil {
			err = k.putPart(&order, parts[i], pins[i])
		}
		k.holder.Discard(filepath.Base(pins[i]))
	}
	return err
}

// putPart puts one part.
func (k *Keeper) putPart(order *Save, part checkpoint.Snapshot, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	request := uploader.Request{Ask: uploader.AskPut, Snapshot: uploader.SnapshotOf(order.Snapshot), Parts: []uploader.Part{uploader.PartOf(part)}}
	if _, err := k.ask(part, request, file); err != nil {
		return err
	}
	k.mu.Lock()
	if k.wanted == nil || k.wanted.Snapshot.State() == part.State() {
		k.state.Put = append(k.state.Put, part)
	}
	k.mu.Unlock()
	k.changed()
	return nil
}

// wait waits, at most until the end.
func (k *Keeper) wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
