// Package snapshots is what the agent does about snapshots: it takes over those that its program has
// written, serves them to other workers, gets the one that a world begins with, and knows which of
// them belong to the history of the world that the worker is in.
package snapshots

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/share"
)

const (
	// keep is of how many states a worker holds snapshots, or parts of them.
	keep = 2
	// maxListed is how many files are reported: more than there are of the states that are kept.
	maxListed = 256
	// maxWaiting is how many files may wait to be taken over; a program writes one after another.
	maxWaiting = 16
)

// errNoMemory is what a worker without a memory volume says.
var errNoMemory = fmt.Errorf("a snapshot %w: this worker has no memory volume", checkpoint.ErrLocal)

// Keeper holds the snapshots of one worker. Its methods return at once, but for Close; what takes
// time is done in the background, one after another, and reported to the functions given to Open.
type Keeper struct {
	store    *checkpoint.Store
	server   *checkpoint.Server
	identity *checkpoint.Identity
	note     func(format string, arguments ...any)
	// changed is called when what List or Failure returns has changed.
	changed func()

	ctx     context.Context
	cancel  context.CancelCauseFunc
	work    chan func()
	working sync.WaitGroup

	mu      sync.Mutex
	history history
	// asked is the step of which the operator wants a snapshot, failure why it did not come.
	asked   uint64
	failure string
	// sizes is how large the state was when each process of the worker has last measured it, by slot.
	sizes map[int]share.Size
	// noted is the last failure, which is in the log; empty once a snapshot was taken.
	noted string
	// fetches are those that are under way, in the order in which they were begun.
	fetches []*fetching
	// copying is the one of what others have alone; nil for none.
	copying *fetching
	// uncopied is why the last one came to nothing, and of which state.
	uncopied   string
	uncopiedOf checkpoint.ID
	// noRoom is how often there was no room for them, and until waits it is not tried again.
	noRoom int
	waits  time.Time
	// crowded is true where there was no room for them beside what programs load when a world begins: they are tried again once that is gone.
	crowded bool
	// brought are the files of Make that are neither taken over nor discarded: each has a claim to room.
	brought map[string]bool
	// written is what waits to be taken over; nil for nothing.
	written *written
}

// Open makes the folder, and serves it on a free port of the address. A folder of "" makes a keeper
// that holds nothing; it serves all the same, so that peers can see that this agent is there.
func Open(folder, address string, note func(string, ...any), changed func()) (*Keeper, error) {
	k := &Keeper{note: note, changed: changed, work: make(chan func(), maxWaiting), brought: map[string]bool{}, sizes: map[int]share.Size{}}
	k.ctx, k.cancel = context.WithCancelCause(context.Background())
	var err error
	if folder != "" {
		if k.store, err = checkpoint.Open(folder, keep); err != nil {
			return nil, err
		}
	}
	if k.identity, err = checkpoint.NewIdentity(); err != nil {
		return nil, err
	}
	if k.server, err = checkpoint.Serve(k.store, net.JoinHostPort(address, "0"), k.identity, k.altered); err != nil {
		return nil, err
	}
	k.working.Go(k.run)
	return k, nil
}

func (k *Keeper) run() {
	for {
		select {
		case <-k.ctx.Done():
			return
		case next := <-k.work:
			next()
		}
	}
}

// Close ends what is under way and stops serving.
func (k *Keeper) Close() error {
	k.cancel(errors.New("the agent ends"))
	k.working.Wait()
	return k.server.Close()
}

// Folder is where programs write; empty for nowhere.
func (k *Keeper) Folder() string {
	if k.store == nil {
		return ""
	}
	return k.store.Directory()
}

// Endpoint is where the snapshots are served, and the SHA-256 of the certificate shown there.
func (k *Keeper) Endpoint() (port int, certificate []byte) {
	sum := k.identity.Sum()
	return k.server.Port(), sum[:]
}

// Trust says with which key the operator of a term makes the tickets for what is served here.
func (k *Keeper) Trust(term uint64, key []byte) {
	k.server.SetKey(term, key)
}

// Reach says whether the keeper of another agent answers: nil, or what is wrong.
func (k *Keeper) Reach(ctx context.Context, peer checkpoint.Holder) error {
	return checkpoint.Reach(ctx, peer, k.identity)
}

// Enter says that the worker is in another world. Of what it holds the states up to fromStep stay
// when the world continues the one before, and otherwise only the one that the world names.
func (k *Keeper) Enter(round, fromStep uint64, continues bool, named *checkpoint.ID) {
	k.mu.Lock()
	k.history = k.history.enter(round, fromStep, continues, named)
	history := k.history
	k.wroteNothing()
	// Who waited for shards in the world before asks anew, and maybe others: this world is not to wait until they have come, or cannot be had.
	k.endFetches(errors.New("another world has begun"), func(f *fetching) bool { return named != nil && f.of() == *named && !f.ofShards() })
	var remove func() error
	if k.store != nil {
		// Of the state that this one names too what has come is of use.
		var same checkpoint.ID
		if named != nil {
			same = named.State()
		}
		remove = k.store.DropExcerpts(same)
	}
	k.mu.Unlock()
	if k.store == nil {
		return
	}
	k.do(func() {
		if remove != nil {
			k.removed(remove())
		}
		k.removed(k.store.Retain(history.holds))
	})
}

// Keep says that what is written from now on of a round, up to a step, counts in the world that the worker is in.
func (k *Keeper) Keep(round, last uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.history = k.history.with(round, last)
}

// do has something done after all that was asked before.
func (k *Keeper) do(work func()) {
	select {
	case k.work <- work:
	default:
		k.working.Go(func() {
			select {
			case k.work <- work:
			case <-k.ctx.Done():
			}
		})
	}
}

// Ask notes that a program is about to be asked for a snapshot of a step. It returns false when
// there is no place for one.
func (k *Keeper) Ask(step uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked, k.failure = step, ""
	if k.store == nil {
		k.failure = errNoMemory.Error()
		return false
	}
	return true
}

// Rely says which state the job would go back to, so that it is kept.
func (k *Keeper) Rely(on checkpoint.ID) {
	if k.store != nil {
		k.store.Rely(on)
	}
}

// Scored says which state is to be made durable since it was evaluated well, so that it is kept; the zero value for none.
func (k *Keeper) Scored(of checkpoint.ID) {
	if k.store != nil {
		k.store.Scored(of)
	}
}

// Open opens a file that is held.
func (k *Keeper) Open(id checkpoint.ID) (*os.File, error) {
	path := k.Path(id)
	if path == "" {
		return nil, fmt.Errorf("this worker does not hold snapshot %v any more", id)
	}
	return os.Open(path)
}

// Pin has files that are held stay until Discard, also when they are held no more, and returns their paths by then.
func (k *Keeper) Pin(ids ...checkpoint.ID) (paths []string, err error) {
	if k.store == nil {
		return nil, errNoMemory
	}
	for _, id := range ids {
		path, err := k.store.Pin(id)
		if err != nil {
			for _, pinned := range paths {
				k.Discard(filepath.Base(pinned))
			}
			return nil, fmt.Errorf("this worker does not hold snapshot %v any more: %w", id, err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// Make makes a file for a snapshot that is to be brought here.
func (k *Keeper) Make() (*os.File, error) {
	if k.store == nil {
		return nil, errNoMemory
	}
	if err := k.store.Claim(); err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(k.store.Directory(), "restore-*.part")
	if err != nil {
		k.store.Release()
		return nil, err
	}
	k.mu.Lock()
	k.brought[filepath.Base(file.Name())] = true
	k.mu.Unlock()
	return file, nil
}

// release ends the claim of a file of Make.
func (k *Keeper) release(name string) {
	k.mu.Lock()
	claimed := k.brought[name]
	delete(k.brought, name)
	k.mu.Unlock()
	if claimed {
		k.store.Release()
	}
}

// Discard removes a file of Make, or of Pin.
func (k *Keeper) Discard(name string) {
	k.discard([]File{{Name: name}})
	k.release(name)
}

// Restored takes over a file that was brought back from the storage. It is listed once a world begins with it.
func (k *Keeper) Restored(id checkpoint.ID, part string, bytes uint64) (checkpoint.Snapshot, error) {
	if k.store == nil {
		return checkpoint.Snapshot{}, errNoMemory
	}
	held, err := k.store.Bring(id, part, bytes)
	if err != nil {
		return checkpoint.Snapshot{}, err
	}
	k.release(part)
	k.changed()
	return held, nil
}

// Forget removes what was taken over from the storage, and is not wanted after all.
func (k *Keeper) Forget(ids ...checkpoint.ID) {
	if k.store == nil || len(ids) == 0 {
		return
	}
	if err := k.store.Retain(func(id checkpoint.ID) bool { return !slices.Contains(ids, id) }); err != nil {
		k.note("%v", err)
	}
}

// altered is told that a snapshot was dropped because its file was no longer what it was.
func (k *Keeper) altered(err error) {
	k.note("%v", err)
	k.changed()
}

// Clear removes what programs have left behind that have ended, once it is known that they are no snapshots. It is called
// before others are started, whose files stay.
func (k *Keeper) Clear() {
	if k.store == nil {
		return
	}
	names, err := k.store.Leftovers()
	if err != nil {
		k.note("%v", err)
	}
	k.do(func() {
		for _, name := range names {
			k.Discard(name)
		}
	})
}

func (k *Keeper) trim(reuse bool) {
	if err := k.store.Trim(reuse); err != nil {
		k.note("%v", err)
	}
}

func (k *Keeper) belongs(id checkpoint.ID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.history.holds(id)
}

// discard removes files that a program has written into the folder.
func (k *Keeper) discard(files []File) {
	for _, file := range files {
		if filepath.Base(file.Name) != file.Name || filepath.Ext(file.Name) != ".part" {
			continue
		}
		if err := os.Remove(filepath.Join(k.store.Directory(), file.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			k.note("remove a snapshot that is not held: %v", err)
		}
	}
}

// Failed notes that a snapshot of a step could not be taken.
func (k *Keeper) Failed(step uint64, why string) {
	k.mu.Lock()
	if k.asked == step && step != 0 {
		k.failure = why
	}
	again := k.noted == why
	k.noted = why
	k.mu.Unlock()
	if !again {
		k.note("no snapshot of step %d: %s", step, why)
	}
	k.changed()
}

// Failure is why the snapshot that was asked for last was not taken; empty for none.
func (k *Keeper) Failure() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failure
}

// Trouble is why the last snapshot was not taken, whoever asked for it; empty once one was.
func (k *Keeper) Trouble() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.noted
}

// List is what is held of the history of the world, newest first.
func (k *Keeper) List() []checkpoint.Snapshot {
	if k.store == nil {
		return nil
	}
	all := k.store.List()
	k.mu.Lock()
	defer k.mu.Unlock()
	var held []checkpoint.Snapshot
	for _, snapshot := range all {
		if k.history.holds(snapshot.ID) && len(held) < maxListed {
			held = append(held, snapshot)
		}
	}
	return held
}

// Has says whether a file is held, and as it was when it came. One that was altered is dropped.
func (k *Keeper) Has(of checkpoint.Snapshot) bool {
	return k.store != nil && k.store.Has(of)
}

// Path is where a file is that is held; empty for none.
func (k *Keeper) Path(id checkpoint.ID) string {
	if k.store == nil {
		return ""
	}
	path, _ := k.store.Path(id)
	return path
}

// PathOf is a file with what is wanted of one, as large as all of it; empty for none. It stays until Began, and until
// a world begins with another state.
func (k *Keeper) PathOf(want checkpoint.Wanted) string {
	if k.store == nil {
		return ""
	}
	path, _ := k.store.PathOf(want)
	return path
}
