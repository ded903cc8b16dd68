package checkpoint

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	// pieceBlocks is how many blocks are asked for at a time, so that several holders share a large file.
	pieceBlocks = 32
	// maxPieces bounds the number of pieces of a file: each comes with the hashes of all of its blocks.
	maxPieces = 64
	// maxStreams is how many pieces come at a time.
	maxStreams = 8
)

// Fetch gets files from those that hold them, several at a time, and pieces of a large one from different holders.
// What is held already is not fetched again. A transfer that does not move for ten seconds ends. A holder that says that
// it does not know the tickets yet, or has no place, is asked again. Errors: ctx has ended; a file cannot be written
// here, ErrLocal; or nobody has one of them, with what was wrong at each holder, ErrUnreached and ErrBusy among them when that was
// so. Files that came whole stay then.
func (s *Store) Fetch(ctx context.Context, identity *Identity, want ...Wanted) error {
	return s.fetch(ctx, identity, false, want)
}

// FetchBeside is Fetch for what comes behind the training: what is left to programs stays, as long as there is room beside it.
func (s *Store) FetchBeside(ctx context.Context, identity *Identity, want ...Wanted) error {
	return s.fetch(ctx, identity, true, want)
}

func (s *Store) fetch(ctx context.Context, identity *Identity, beside bool, want []Wanted) error {
	now := time.Now()
	g := &gathering{
		store: s, ctx: ctx, identity: identity, beside: beside, began: now, moved: now, gave: map[string]bool{}, busy: map[string]error{},
	}
	g.changed = sync.NewCond(&g.mu)
	g.shared, g.enough = context.WithCancel(ctx)
	defer g.enough()
	for i := range want {
		held, err := s.holdsWhole(want[i].Snapshot)
		if held {
			continue
		}
		if err == nil && want[i].Bytes > MaxBytes {
			err = fmt.Errorf("it is said to have %d bytes, more than the largest of %d", want[i].Bytes, int64(MaxBytes))
			want[i].Holders, want[i].Peers = nil, nil
		}
		g.add(&want[i], err)
	}
	s.expect(g.arrivals)
	defer g.close()
	stop := context.AfterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.changed.Broadcast()
	})
	defer stop()
	g.run()
	return g.result()
}

// gathering is one Fetch.
type gathering struct {
	store    *Store
	ctx      context.Context
	identity *Identity
	began    time.Time
	// shared ends when nothing is missing any more: peers are not waited for then.
	shared context.Context
	enough context.CancelFunc

	mu sync.Mutex
	// changed is told when a piece was taken, or came.
	changed  *sync.Cond
	arrivals []*arrival
	pieces   []*piece
	// gone are the holders that are asked for nothing more, since they could not be reached, in that order; running is how many
	// pieces are on their way, and moved is when the last one came.
	gone    []Unreached
	running int
	moved   time.Time
	// gave are the holders that something came from.
	gave map[string]bool
	// busy are those that had no place since something came from them, with what they said.
	busy map[string]error
	// holding is how many streams from holders there are.
	holding int
	// claimed is true once room for files was claimed; beside has that wait until there is none.
	claimed, beside bool
	// local is why nothing can be written here.
	local error
}

// arrival is a file that is on its way.
type arrival struct {
	*Wanted
	in   *gathering
	file *os.File
	// only are the blocks that are to come, of an excerpt; nil for all. made is true where there was nothing of it before.
	only    []span
	excerpt *excerpt
	made    bool
	// blocks are the hashes of its blocks, once a holder has said them; left is how many pieces are missing.
	blocks []Hash
	left   int
	// each is how many blocks a piece has, here the pieces that have come.
	each uint64
	here pieceSet
	// lacking are the holders that do not have it, errs what was wrong at each.
	lacking map[string]bool
	errs    []error
}

// piece is some blocks of a file.
type piece struct {
	of       *arrival
	from, to uint64
	// index counts the pieces of its file; -1 for what is missing of one.
	index   int
	running bool
	// refused are the holders that have not given it whole.
	refused map[string]bool
}

// add plans how a file is to come.
func (g *gathering) add(want *Wanted, err error) {
	a := &arrival{Wanted: want, in: g, lacking: map[string]bool{}, errs: []error{fmt.Errorf("%d holders are known", len(want.Holders))}}
	if err != nil {
		a.errs = append(a.errs, err)
	}
	if some := want.blocks(); some != nil {
		g.addSome(a, some)
		return
	}
	g.arrivals = append(g.arrivals, a)
	blocks := numberOfBlocks(want.Bytes)
	least := uint64(pieceBlocks)
	if len(want.Peers) > 0 {
		least = g.store.sharedBlocks
	}
	a.each = max(least, (blocks+maxPieces-1)/maxPieces)
	for from := uint64(0); from < blocks || from == 0; from += a.each {
		g.pieces = append(g.pieces, &piece{of: a, from: from, to: min(blocks, from+a.each), index: int(from / a.each), refused: map[string]bool{}})
		a.left++
	}
}

// run has every holder give pieces until there are none that it could give, and every peer those that it has by then. A single
// holder has two streams.
func (g *gathering) run() {
	holders, peers := map[string]Holder{}, map[string]Holder{}
	for _, a := range g.arrivals {
		for _, h := range a.Holders {
			holders[h.String()] = h
		}
		for _, h := range a.Peers {
			peers[h.String()] = h
		}
	}
	g.arrange(len(peers) > 0)
	places := make(chan struct{}, maxStreams)
	var streams sync.WaitGroup
	each := max(1, 3-len(holders))
	g.holding = each * len(holders)
	for _, h := range holders {
		for range each {
			streams.Go(func() {
				defer g.leave()
				if len(peers) > 0 {
					g.streamShared(h, true)
				}
				g.stream(h, places)
			})
		}
	}
	for _, h := range peers {
		if _, both := holders[h.String()]; !both {
			streams.Go(func() { g.streamShared(h, false) })
		}
	}
	streams.Wait()
}

// arrange puts the pieces into the order in which they are asked for: not all that need the same files begin with the same one, and
// where they give them to each other each should have what others have not.
func (g *gathering) arrange(shared bool) {
	if len(g.pieces) == 0 {
		return
	}
	sum := g.identity.Sum()
	first := binary.BigEndian.Uint64(sum[:])
	if shared {
		random := rand.New(rand.NewPCG(first, 0))
		random.Shuffle(len(g.pieces), func(i, j int) { g.pieces[i], g.pieces[j] = g.pieces[j], g.pieces[i] })
		return
	}
	at := int(first % uint64(len(g.pieces)))
	g.pieces = append(g.pieces[at:len(g.pieces):len(g.pieces)], g.pieces[:at]...)
}

// stream gets pieces from one holder.
func (g *gathering) stream(from Holder, places chan struct{}) {
	buffer := make([]byte, blockBytes)
	for hungUp := 0; ; {
		p := g.next(from)
		if p == nil {
			return
		}
		places <- struct{}{}
		missing, err := g.get(p, from, buffer)
		<-places
		hungUp = g.countHangUps(from, err, hungUp)
		after := g.again(err, hungUp)
		if errors.Is(err, ErrBusy) && after == 0 {
			g.came(p, from, missing, err, true) // what it gives on another stream it may go on to give there
			g.note(p, from, err)
			return
		}
		g.came(p, from, missing, err, after > 0)
		if after > 0 {
			wait(g.ctx, after)
		}
	}
}

// next takes a piece that a holder may give; nil when there will be none.
func (g *gathering) next(from Holder) *piece {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.ctx.Err() == nil && g.local == nil && !g.isGone(from) {
		later := false
		for _, p := range g.pieces {
			if !p.mayCome(from) {
				continue
			}
			if !p.running {
				p.running = true
				g.running++
				return p
			}
			later = true // whoever gives it now may fail
		}
		if !later {
			return nil
		}
		g.changed.Wait()
	}
	return nil
}

// mayCome says whether a holder may give a piece.
func (p *piece) mayCome(from Holder) bool {
	name := from.String()
	return !p.refused[name] && !p.of.lacking[name] && contains(p.of.Holders, from)
}

// isGone says whether a holder is asked for nothing more.
func (g *gathering) isGone(one Holder) bool {
	return slices.ContainsFunc(g.gone, func(u Unreached) bool { return u.Holder.String() == one.String() })
}

func contains(holders []Holder, one Holder) bool {
	name := one.String()
	return slices.ContainsFunc(holders, func(h Holder) bool { return h.String() == name })
}

// came notes what has come of a piece: what is missing of it is asked for elsewhere, and the rest not again.
func (g *gathering) came(p *piece, from Holder, missing []span, err error, early bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.changed.Broadcast()
	g.running--
	p.running = false
	name := from.String()
	if len(missing) == 0 || missing[0] != (span{p.from, p.to}) {
		g.moved, g.gave[name] = time.Now(), true
		delete(g.busy, name)
	}
	switch {
	case err == nil || early || g.ctx.Err() != nil:
	case errors.Is(err, ErrLocal):
		g.local = errors.Join(g.local, err)
	default:
		p.of.errs = append(p.of.errs, fmt.Errorf("from %s: %w", from, g.withBusy(from, err)))
		if errors.Is(err, ErrUnreached) && !g.isGone(from) {
			g.gone = append(g.gone, Unreached{Holder: from, Why: err})
		}
	}
	if len(missing) > 0 {
		if !early {
			p.refused[name] = true
		}
		if missing[0] != (span{p.from, p.to}) {
			p.index = -1
		}
		p.from, p.to = missing[0].from, missing[0].to
		for _, more := range missing[1:] {
			g.pieces = append(g.pieces, &piece{of: p.of, from: more.from, to: more.to, index: -1, refused: map[string]bool{name: true}})
			p.of.left++
		}
		return
	}
	for i := range g.pieces {
		if g.pieces[i] == p {
			g.pieces = append(g.pieces[:i:i], g.pieces[i+1:]...)
			break
		}
	}
	if p.index >= 0 {
		p.of.here.add(p.index)
	}
	if p.of.left--; p.of.left == 0 {
		if err := p.of.finish(g.store); err != nil {
			g.local = errors.Join(g.local, err)
		}
	}
	if len(g.pieces) == 0 {
		g.enough()
	}
	g.store.grow()
}

// finish gives a file its name.
func (a *arrival) finish(s *Store) error {
	if err := a.file.Close(); err != nil {
		return a.unwritable(s, err)
	}
	if a.excerpt != nil {
		a.file = nil
		return nil
	}
	if _, err := s.enter(held{a.Snapshot, a.blocks, true}, filepath.Base(a.file.Name()), true); err != nil {
		return a.unwritable(s, err)
	}
	s.refresh(a.ID)
	a.file = nil
	return nil
}

// close removes what has not come whole.
func (g *gathering) close() {
	g.store.expected(g.arrivals)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range g.arrivals {
		if a.file != nil {
			_ = a.file.Close()
			if a.excerpt == nil {
				_ = os.Remove(a.file.Name())
			}
			a.file = nil
		}
	}
	if g.local != nil {
		g.giveUp()
	}
	if g.claimed {
		g.store.Release()
	}
}

// result is nil when all has come.
func (g *gathering) result() error {
	for _, a := range g.arrivals {
		switch {
		case g.has(a):
			continue
		case g.ctx.Err() != nil:
			return fmt.Errorf("fetch snapshot %v: %w", a.ID, context.Cause(g.ctx))
		case g.local != nil:
			a.errs = append(a.errs, g.local)
		case a.left == 0 && a.file == nil:
			a.errs = []error{errDropped}
		}
		gone := slices.DeleteFunc(slices.Clone(g.gone), g.isFull)
		for i := range gone {
			gone[i].Gave = g.gave[gone[i].Holder.String()]
		}
		return missed{fmt.Errorf("fetch snapshot %v: %w", a.ID, listed(a.errs)), gone, len(g.gave) > 0, g.lacked()}
	}
	return nil
}

// bytesHeader says how many bytes the whole file has, of which a holder gives a piece.
const bytesHeader = "Snapshot-Bytes"

// get gets a piece from a holder, and returns what is still missing of it.
func (g *gathering) get(p *piece, from Holder, buffer []byte) (missing []span, err error) {
	all := []span{{p.from, p.to}}
	response, err := g.ask(g.ctx, http.MethodGet, p.of.Snapshot, p.query(), from)
	if err != nil {
		return all, fmt.Errorf("%w: %w", ErrUnreached, err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return all, unserved(response)
	}
	bytes, body := response.Header.Get(bytesHeader), &counter{r: response.Body}
	if bytes == "" {
		bytes = strconv.FormatInt(response.ContentLength, 10)
	}
	if bytes != strconv.FormatUint(p.of.Bytes, 10) {
		return all, fmt.Errorf("it holds a file of %.20s bytes, and %d are wanted", bytes, p.of.Bytes)
	}
	file, err := g.open(p.of)
	if err != nil {
		return all, err
	}
	if response.Header.Get(bytesHeader) == "" {
		missing, err = g.takeWhole(p, file, body, buffer)
	} else {
		missing, err = g.takePiece(p, response.Header.Get(onlyHeader) != "", file, body, buffer)
	}
	if errors.Is(err, errWrongBytes) {
		err = fmt.Errorf("%w, %s", err, g.verifyAt(p.of.Snapshot, from))
	}
	return missing, err
}

// takePiece reads the hashes of all blocks, and then the blocks of the piece: with only those that are wanted of it.
func (g *gathering) takePiece(p *piece, only bool, file *os.File, body *counter, buffer []byte) ([]span, error) {
	all := []span{{p.from, p.to}}
	blocks, err := readHashes(body, numberOfBlocks(p.of.Bytes))
	if err != nil {
		return all, brokenOff(body, p.of.Snapshot, err)
	}
	if hash := hashOfBlocks(blocks); hash != p.of.Hash {
		return all, fmt.Errorf("its blocks have the %w %x, and %x is wanted", errWrongBytes, hash, p.of.Hash)
	}
	g.mu.Lock()
	p.of.blocks = blocks
	g.mu.Unlock()
	var missing []span
	var wrong error
	wanted := p.wanted()
	for i := p.from; i < p.to; i++ {
		isWanted := len(within(wanted, span{i, i + 1})) > 0
		if only && !isWanted {
			continue
		}
		block := buffer[:min(blockBytes, p.of.Bytes-i*blockBytes)]
		if _, err := io.ReadFull(body, block); err != nil {
			return append(missing, span{i, p.to}), brokenOff(body, p.of.Snapshot, err)
		}
		if !isWanted {
			continue
		}
		if sumOf(block) != blocks[i] {
			missing = append(missing, span{i, i + 1})
			wrong = fmt.Errorf("block %d has another %w than it says itself", i, errWrongBytes)
			continue
		}
		if err := g.write(file, block, i); err != nil {
			return all, p.of.unwritable(g.store, err)
		}
		p.of.note(g.store, blocks, span{i, i + 1})
	}
	return missing, wrong
}

// takeWhole reads the whole file from an agent of a version that gives no pieces.
func (g *gathering) takeWhole(p *piece, file *os.File, body *counter, buffer []byte) ([]span, error) {
	all := []span{{p.from, p.to}}
	blocks, wanted := make([]Hash, numberOfBlocks(p.of.Bytes)), p.wanted()
	for i := range uint64(len(blocks)) {
		block := buffer[:min(blockBytes, p.of.Bytes-i*blockBytes)]
		if _, err := io.ReadFull(body, block); err != nil {
			return all, brokenOff(body, p.of.Snapshot, err)
		}
		blocks[i] = sumOf(block)
		if len(within(wanted, span{i, i + 1})) > 0 {
			if err := g.write(file, block, i); err != nil {
				return all, p.of.unwritable(g.store, err)
			}
		}
	}
	if hash := hashOfBlocks(blocks); hash != p.of.Hash {
		return all, fmt.Errorf("the %d bytes have the %w %x, and %x is wanted", p.of.Bytes, errWrongBytes, hash, p.of.Hash)
	}
	g.mu.Lock()
	p.of.blocks = blocks
	g.mu.Unlock()
	p.of.note(g.store, blocks, wanted...)
	return nil, nil
}
