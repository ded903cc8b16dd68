package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
)

// Of a state in shards a process may need only some of each of them, since another world cuts it otherwise. An excerpt is a file as large as
// a shard that has those of its blocks which somebody here needs, each in its place, and holes elsewhere. It is for programs of this
// worker to read, until the world has begun, and for nothing else: it is not listed, given to others, verified as a whole, put into the storage,
// or kept for a recovery, so nobody takes this worker for one that holds the shard. Whose blocks are all needed comes as a whole, and is held.

// Range is the bytes of a file from From to before To.
type Range struct{ From, To uint64 }

// mostSpans is how many spans are asked for at a time: they are in the line of a request.
const mostSpans = 64

// onlyQuery are the blocks that a client wants of those that it asks for, and onlyHeader says that these alone are given. Who does not
// know of it gives all of them.
const (
	onlyQuery  = "only"
	onlyHeader = "Snapshot-Only"
)

// errDropped says that what came of a shard was dropped while more of it came: nobody waits for it any more.
var errDropped = errors.New("what had come of it was dropped meanwhile")

// excerpt is some blocks of a snapshot, in a file.
type excerpt struct {
	Snapshot
	path string
	// here are the blocks that have come, hashes those of all blocks.
	here   []span
	hashes []Hash
}

// blocks are those with something of the ranges that are wanted; nil for all blocks.
func (w *Wanted) blocks() []span {
	if len(w.Only) == 0 {
		return nil
	}
	all := span{0, numberOfBlocks(w.Bytes)}
	var some []span
	for _, r := range w.Only {
		if r.From < r.To {
			some = append(some, span{r.From / blockBytes, numberOfBlocks(min(r.To, math.MaxUint64-blockBytes))})
		}
	}
	if some = within(joined(some...), all); len(some) == 0 || lenOf(some) == all.to {
		return nil
	}
	return some
}

// excerptOf finds what has come of a snapshot; s.mu is held. nil for nothing.
func (s *Store) excerptOf(of Snapshot) *excerpt {
	if i := slices.IndexFunc(s.excerpts, func(e *excerpt) bool { return e.Snapshot == of }); i >= 0 {
		return s.excerpts[i]
	}
	return nil
}

// lacks says which of some blocks are still to come. Those that came are read again: memory may be bad.
func (s *Store) lacks(of Snapshot, blocks []span) []span {
	s.mu.Lock()
	e := s.excerptOf(of)
	if e == nil {
		s.mu.Unlock()
		return blocks
	}
	path, here, hashes := e.path, slices.Clone(e.here), e.hashes
	s.mu.Unlock()
	missing := without(blocks, here)
	file, err := os.Open(path)
	if err != nil {
		return blocks
	}
	defer func() { _ = file.Close() }()
	buffer := make([]byte, blockBytes)
	for _, there := range without(blocks, missing) {
		for i := there.from; i < there.to; i++ {
			block := buffer[:min(blockBytes, of.Bytes-i*blockBytes)]
			if _, err := file.ReadAt(block, int64(i*blockBytes)); err != nil || sumOf(block) != hashes[i] {
				missing = append(missing, span{i, i + 1})
			}
		}
	}
	return joined(missing...)
}

// addSome plans how an excerpt is to come; nothing is left to do where all of it is there.
func (g *gathering) addSome(a *arrival, blocks []span) {
	if a.only = g.store.lacks(a.Snapshot, blocks); len(a.only) == 0 {
		return
	}
	g.arrivals = append(g.arrivals, a)
	for rest := a.only; len(rest) > 0; {
		p := &piece{of: a, from: rest[0].from, index: -1, refused: map[string]bool{}}
		room := max(pieceBlocks, (lenOf(a.only)+maxPieces-1)/maxPieces) // as in add
		for n := 0; len(rest) > 0 && n < mostSpans && room > 0; n++ {
			took := min(rest[0].len(), room)
			p.to, room = rest[0].from+took, room-took
			if took < rest[0].len() {
				rest = append([]span{{p.to, rest[0].to}}, rest[1:]...)
				break
			}
			rest = rest[1:]
		}
		g.pieces = append(g.pieces, p)
		a.left++
	}
}

// wanted are the blocks of a piece that are to come.
func (p *piece) wanted() []span {
	in := span{p.from, p.to}
	if p.of.only == nil {
		return []span{in}
	}
	return within(p.of.only, in)
}

// query asks for a piece.
func (p *piece) query() string {
	query := fmt.Sprintf("?from=%d&to=%d", p.from, p.to)
	if wanted := p.wanted(); len(wanted) > 1 {
		query += "&" + onlyQuery + "=" + textOf(wanted)
	}
	return query
}

// openExcerpt makes the file of an excerpt, or opens the one that there is; the lock of the gathering is held.
func (g *gathering) openExcerpt(a *arrival) (*os.File, error) {
	s := g.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.excerpt = s.excerptOf(a.Snapshot); a.excerpt != nil {
		return os.OpenFile(a.excerpt.path, os.O_RDWR, 0)
	}
	file, err := s.create(s.dir)
	if err != nil {
		return nil, err
	}
	if err := file.Truncate(int64(a.Bytes)); err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	a.excerpt, a.made = &excerpt{Snapshot: a.Snapshot, path: file.Name()}, true
	s.excerpts = append(s.excerpts, a.excerpt)
	return file, nil
}

// note keeps that blocks of an excerpt have come, and were what they should be.
func (a *arrival) note(s *Store, blocks []Hash, come ...span) {
	if a.excerpt == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a.excerpt.hashes, a.excerpt.here = blocks, joined(append(come, a.excerpt.here...)...)
}

// giveUp drops excerpts that were begun and have no room, or cannot be written: nobody was told of them.
func (g *gathering) giveUp() {
	remove := g.store.dropExcerpts(func(e *excerpt) bool {
		return !slices.ContainsFunc(g.arrivals, func(a *arrival) bool { return a.made && a.excerpt == e })
	})
	if remove != nil {
		_ = remove()
	}
}

// isDropped says whether an excerpt that came is there no more.
func (a *arrival) isDropped(s *Store) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return a.excerpt != nil && !slices.Contains(s.excerpts, a.excerpt)
}

// PathOf is a file that has what is wanted of a snapshot, which is as large as all of it; false when there is none.
func (s *Store) PathOf(want Wanted) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.find(want.ID); i >= 0 && s.held[i].Snapshot == want.Snapshot {
		return s.path(want.ID), true
	}
	blocks := want.blocks()
	if e := s.excerptOf(want.Snapshot); e != nil && blocks != nil && len(without(blocks, e.here)) == 0 {
		return e.path, true
	}
	return "", false
}

// DropExcerpts lets go of what came of shards for a world that has begun, or is over, but for that of one state; the zero value for
// none. remove removes it, which takes its time, and is nil where there is nothing. Who has it open reads on.
func (s *Store) DropExcerpts(but ID) (remove func() error) {
	return s.dropExcerpts(func(e *excerpt) bool { return e.State() == but })
}

// dropExcerpts is DropExcerpts of all but some.
func (s *Store) dropExcerpts(but func(*excerpt) bool) (remove func() error) {
	s.mu.Lock()
	var dropped, kept []*excerpt
	for _, e := range s.excerpts {
		if but(e) {
			kept = append(kept, e)
		} else {
			dropped = append(dropped, e)
		}
	}
	s.excerpts = kept
	s.mu.Unlock()
	if len(dropped) == 0 {
		return nil
	}
	return func() error {
		var errs []error
		for _, e := range dropped {
			if err := os.Remove(e.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("remove what came of a shard: %w", err))
			}
		}
		return errors.Join(errs...)
	}
}

// HasExcerpts says whether there is something that came of shards.
func (s *Store) HasExcerpts() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.excerpts) > 0
}

// sectionsOf are some blocks of a file, one after another.
func sectionsOf(file io.ReaderAt, blocks []span, size uint64) (content io.Reader, length int64) {
	var sections []io.Reader
	for _, b := range blocks {
		start, end := b.from*blockBytes, min(b.to*blockBytes, size)
		sections = append(sections, io.NewSectionReader(file, int64(start), int64(end-start)))
		length += int64(end - start)
	}
	if len(sections) == 1 {
		return sections[0], length
	}
	return struct{ io.Reader }{io.MultiReader(sections...)}, length // which writes itself in smaller pieces
}
