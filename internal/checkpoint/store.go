package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/concertina-dev/concertina/internal/share"
)

// bufferBytes is how much of a file is in memory while it is read or written.
const bufferBytes = 256 << 10

// Store is the folder of snapshots of one worker. Its methods may be called at any time from any
// goroutine.
type Store struct {
	dir  string
	keep int
	// create makes the file that a transfer is written to.
	create func(dir string) (*os.File, error)
	// dial connects to who has a file.
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu sync.Mutex
	// held is ordered, newest first; came is the state that came last, fresh the last one that came from
	// another worker, or from the storage: the world that it is for has not begun yet. relied is the state
	// that the job relies on.
	held                []held
	came, fresh, relied ID
	// copied is the state of which this worker is getting copies, or others get them from it, scored one that is to be made durable
	// since it was evaluated well.
	copied, scored ID
	// drops counts the files that were dropped, pins the names of Pin.
	drops, pins int

	// arriving are the files that are on their way here; grew is closed when there are more, or more of one. sharedBlocks is how many
	// blocks a piece has at least of those that others are getting as well.
	arriving     map[ID]*arrival
	grew         chan struct{}
	sharedBlocks uint64
	// excerpts are the files with some blocks of a snapshot.
	excerpts []*excerpt
	// patience is for how long a holder is asked again that has no place, since something came.
	patience time.Duration

	// sparing is held while files are left to programs; claims counts who needs the room of those, see Claim.
	sparing sync.Mutex
	claims  int
}

// held is a file of the store.
type held struct {
	Snapshot
	// blocks are the hashes of its blocks.
	blocks []Hash
	// guest is true for one that came from another worker.
	guest bool
}

// Open makes the folder if it is not there, removes what was left half written, and takes up the
// files that are in it. Trim leaves those of the newest keep states, at least 1. Errors: keep out of
// range, or the folder cannot be made, read or cleaned.
func Open(dir string, keep int) (*Store, error) {
	if keep < 1 {
		return nil, fmt.Errorf("a store of snapshots keeps at least 1, not %d", keep)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of snapshots: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the folder of snapshots: %w", err)
	}
	s := &Store{
		dir: dir, keep: keep, arriving: map[ID]*arrival{}, grew: make(chan struct{}), sharedBlocks: sharedBlocks, patience: busyTimeout,
		dial:   (&net.Dialer{Timeout: connectTimeout}).DialContext,
		create: func(dir string) (*os.File, error) { return os.CreateTemp(dir, "fetch-*"+partSuffix) },
	}
	for _, entry := range entries {
		if err := s.adopt(entry.Name()); err != nil {
			return nil, fmt.Errorf("take up the folder of snapshots %s: %w", dir, err)
		}
	}
	return s, s.Trim(false)
}

// adopt takes a file up that was there before.
func (s *Store) adopt(name string) error {
	if strings.HasSuffix(name, partSuffix) {
		return os.RemoveAll(filepath.Join(s.dir, name))
	}
	id, ok := ParseID(name)
	if !ok {
		return nil
	}
	bytes, blocks, err := s.inspect(name)
	if err != nil {
		return os.RemoveAll(filepath.Join(s.dir, name))
	}
	s.insert(heldAs(id, bytes, blocks))
	return nil
}

// Leftovers are the names of files that programs have written, or begun to, and that are no snapshots.
func (s *Store) Leftovers() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("read the folder of snapshots: %w", err)
	}
	var names []string
	for _, entry := range entries {
		name := entry.Name()
		ours := slices.ContainsFunc(ownParts, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		if strings.HasSuffix(name, partSuffix) && !ours {
			names = append(names, name)
		}
	}
	return names, nil
}

// ownParts begin the names of files that agents write themselves.
var ownParts = []string{"fetch-", "drop-", "restore-", "pin-"}

func heldAs(id ID, bytes uint64, blocks []Hash) held {
	return held{Snapshot: Snapshot{ID: id, Bytes: bytes, Hash: hashOfBlocks(blocks)}, blocks: blocks}
}

// Directory is the folder.
func (s *Store) Directory() string { return s.dir }

// Take makes the file named part, which a program wrote into the folder, the snapshot id. An id that is held already stays as it is, and part is
// dropped: an id names one state, and others may have heard of its hash. Errors: part is not a
// plain name that ends in .part, is not a regular file, or has another size than bytes.
func (s *Store) Take(id ID, part string, bytes uint64) (Snapshot, error) {
	snapshot, err := s.take(id, part, bytes)
	if err != nil {
		return Snapshot{}, fmt.Errorf("take %.100q over as snapshot %v: %w", part, id, err)
	}
	return snapshot, nil
}

// Bring is Take for a file that was brought from the storage.
func (s *Store) Bring(id ID, part string, bytes uint64) (Snapshot, error) {
	snapshot, err := s.Take(id, part, bytes)
	if err == nil {
		s.refresh(id)
	}
	return snapshot, err
}

// refresh notes which snapshot was the last to come from elsewhere.
func (s *Store) refresh(id ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fresh = id.State()
}

func (s *Store) take(id ID, part string, bytes uint64) (Snapshot, error) {
	if part != filepath.Base(part) || !strings.HasSuffix(part, partSuffix) {
		return Snapshot{}, errors.New("a snapshot is written into the folder of snapshots, under a name that ends in .part")
	}
	size, blocks, err := s.inspect(part)
	if err != nil {
		return Snapshot{}, err
	}
	if size != bytes {
		return Snapshot{}, errors.Join(
			fmt.Errorf("the file has %d bytes and %d were announced", size, bytes),
			os.Remove(filepath.Join(s.dir, part)))
	}
	return s.enter(heldAs(id, size, blocks), part, false)
}

// inspect reads a file for its size and the hashes of its blocks.
func (s *Store) inspect(name string) (uint64, []Hash, error) {
	file, err := s.openRegular(name)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return 0, nil, err
	}
	if info.Size() > MaxBytes {
		return 0, nil, fmt.Errorf("the file has more than %d bytes", int64(MaxBytes))
	}
	blocks, err := blocksOf(file, info.Size())
	return uint64(info.Size()), blocks, err
}

// openRegular opens a file of the folder, and nothing that only looks like one: a link would lead
// out of the folder, and a pipe would block.
func (s *Store) openRegular(name string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(s.dir, name), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no regular file")
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// enter gives a whole file its name. With replace, it takes the place of one with the same id.
func (s *Store) enter(file held, part string, replace bool) (Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := filepath.Join(s.dir, part)
	if i := s.find(file.ID); i >= 0 {
		if !replace {
			s.held[i].guest = s.held[i].guest && file.guest
			return s.held[i].Snapshot, os.Remove(from)
		}
		s.held = slices.Delete(s.held, i, i+1)
	}
	if err := os.Rename(from, s.path(file.ID)); err != nil {
		return Snapshot{}, err
	}
	s.insert(file)
	s.came = file.State()
	return file.Snapshot, nil
}

// errAltered marks a file that is no longer what it was when it came.
var errAltered = errors.New("the file is not what it was when it came: its memory may be bad. It was dropped")

// Verify reads the file of a snapshot again, which takes about a tenth of a second for 100 MiB. One that is not what it
// was when it came is dropped: nobody is to go on from it. Errors: it is not held, it cannot be read, or it was altered.
func (s *Store) Verify(id ID) error {
	file, held, err := s.open(id)
	if err != nil {
		return fmt.Errorf("verify snapshot %v: %w", id, err)
	}
	defer func() { _ = file.Close() }()
	hash, err := HashOf(file, int64(held.Bytes))
	if err == nil && hash == held.Hash {
		return nil
	}
	if err == nil || errors.Is(err, errCut) {
		err = errAltered
	}
	return errors.Join(fmt.Errorf("verify snapshot %v: %w", id, err), s.drop(held.Snapshot))
}

// Has says whether a snapshot is held, and as it was when it came; what was brought last is not read again.
func (s *Store) Has(want Snapshot) bool {
	whole, _ := s.holdsWhole(want)
	return whole
}

// drop drops a snapshot, unless another one has its name by now.
func (s *Store) drop(snapshot Snapshot) error {
	s.mu.Lock()
	if i := s.find(snapshot.ID); i < 0 || s.held[i].Snapshot != snapshot {
		s.mu.Unlock()
		return nil
	}
	return s.dropAndUnlock([]ID{snapshot.ID}, false)
}

func (s *Store) insert(file held) {
	at, _ := slices.BinarySearchFunc(s.held, file, func(a, b held) int { return CompareIDs(b.ID, a.ID) })
	s.held = slices.Insert(s.held, at, file)
}

// Rely says which state the job would go back to. It is kept until another one is: a worker may have taken its part of
// newer ones of which the others have none yet.
func (s *Store) Rely(on ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relied = on.State()
}

// Copy says of which state copies are being made, so that it is kept until they are there; the zero value for none.
func (s *Store) Copy(of ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copied = of.State()
}

// Scored says which state is to be made durable since it was evaluated well, so that it is kept until it is; the zero value for none.
func (s *Store) Scored(of ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scored = of.State()
}

// Trim drops the oldest states beyond those to keep, but neither the one that came last, which is wanted
// even if it is old, nor those that are relied on, copied, or scored. Of the states before the one that came last it drops the parts that
// other workers gave: whoever needed them has them. Shards stay as long as no later state is relied on: others may have no copy besides.
// Where there are some, what differs by rank stays of states that are relied on, or copied, and these do not count among those to keep. It is to be called after Take and Fetch, once nobody waits for them
// any more: a large file takes its time to go.
//
// With reuse the files are left to the program, which writes over them; see spares.go. Without it nothing is left to it.
func (s *Store) Trim(reuse bool) error {
	err := s.trim(reuse)
	if !reuse {
		err = errors.Join(err, s.ClearSpares()) // of a program before this one
	}
	return err
}

// TrimBeside is Trim that leaves nothing to the program, and takes nothing that was left to it.
func (s *Store) TrimBeside() error { return s.trim(false) }

func (s *Store) trim(reuse bool) error {
	s.mu.Lock()
	var kept []ID
	var dropped []ID
	shards := slices.ContainsFunc(s.held, func(file held) bool { return share.IsShard(file.Part) })
	for i := range s.held {
		if of := &s.held[i]; s.isNeedless(of, shards) {
			dropped = append(dropped, of.ID)
		} else {
			kept = append(kept, of.ID)
		}
	}
	var states []ID
	for _, id := range kept {
		if len(states) == 0 || states[len(states)-1] != id.State() {
			states = append(states, id.State())
		}
	}
	left := len(states)
	if shards {
		// Beside the newest: nobody has what another rank has yet to write of them.
		left = len(slices.DeleteFunc(slices.Clone(states), s.isNeeded))
	} else if s.scored != s.relied && s.scored != s.came && slices.Contains(states, s.scored) {
		left-- // it stays beside those that a loss may need
	}
	for i := len(states) - 1; i >= 0 && left > s.keep; i-- {
		if states[i] == s.came || s.isNeeded(states[i]) {
			continue
		}
		left--
		for _, id := range kept {
			if id.State() == states[i] {
				dropped = append(dropped, id)
			}
		}
	}
	return s.dropAndUnlock(dropped, reuse && len(dropped) > 0)
}

// isNeeded says whether a state stays, however many newer ones come. The lock is held.
func (s *Store) isNeeded(state ID) bool {
	return state == s.relied || state == s.copied || state == s.scored
}

// isNeedless says whether a file is a part that another worker gave, and that nobody needs any more here: a shard of a state that is
// older than the one that the job relies on, and is not copied; where there are shards, what differs by rank once its state is neither relied
// on nor copied; anything else once another state has come. Without something that differs by rank no state is whole, and all who have shards
// may have it from others, as where a whole gang moved. Beside shares, which go when another state has come, it would be of no use, and have no
// room: those who have saved nothing yet have both. The lock is held.
func (s *Store) isNeedless(file *held, shards bool) bool {
	state := file.State()
	if !file.guest || file.Part == "" || state == s.came {
		return false
	}
	if key, _ := share.Parse(file.Part); key.Rank && shards {
		return !s.isNeeded(state)
	}
	return !share.IsShard(file.Part) || CompareIDs(state, s.relied) < 0 && state != s.copied
}

// dropAndUnlock drops snapshots; it is called with the lock held, and lets go of it before the files are
// deleted, or left to the program: under other names by then, because the same snapshots may come again meanwhile.
func (s *Store) dropAndUnlock(ids []ID, reuse bool) error {
	var errs []error
	var files []string
	for _, id := range ids {
		s.held = slices.DeleteFunc(s.held, func(file held) bool { return file.ID == id })
		s.drops++
		name := filepath.Join(s.dir, fmt.Sprintf("drop-%d%s", s.drops, partSuffix))
		if err := os.Rename(s.path(id), name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("drop a snapshot: %w", err))
			continue
		}
		files = append(files, name)
	}
	s.mu.Unlock()
	if reuse {
		rest, err := s.spare(files)
		files, errs = rest, append(errs, err)
	}
	for _, name := range files {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("drop a snapshot: %w", err))
		}
	}
	return errors.Join(errs...)
}

func (s *Store) find(id ID) int {
	return slices.IndexFunc(s.held, func(file held) bool { return file.ID == id })
}

func (s *Store) path(id ID) string { return filepath.Join(s.dir, id.String()) }

// List is what the store holds, newest first: by round, then by step, then by part.
func (s *Store) List() []Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Snapshot, len(s.held))
	for i := range s.held {
		all[i] = s.held[i].Snapshot
	}
	return all
}

// Path is the file of a snapshot; false when the store does not hold it.
func (s *Store) Path(id ID) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.find(id) < 0 {
		return "", false
	}
	return s.path(id), true
}

// Pin gives a file another name, which is the caller's: what it is called stays as it is until the caller removes it, whatever becomes
// of the snapshot meanwhile. Errors: it is not held, or the folder takes no other name for it.
func (s *Store) Pin(id ID) (path string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.find(id) < 0 {
		return "", fs.ErrNotExist
	}
	s.pins++
	path = filepath.Join(s.dir, fmt.Sprintf("pin-%d%s", s.pins, partSuffix))
	return path, os.Link(s.path(id), path)
}

// Retain drops all snapshots but those that wanted says true to. Whoever reads one meanwhile reads on.
func (s *Store) Retain(wanted func(ID) bool) error {
	s.mu.Lock()
	var dropped []ID
	for i := range s.held {
		if id := s.held[i].ID; !wanted(id) {
			dropped = append(dropped, id)
		}
	}
	return s.dropAndUnlock(dropped, false)
}

// open opens a snapshot for reading, under the lock: once it is open nobody can take it away.
func (s *Store) open(id ID) (*os.File, held, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.find(id)
	if i < 0 {
		return nil, held{}, fs.ErrNotExist
	}
	file, err := s.openRegular(id.String())
	return file, s.held[i], err
}
