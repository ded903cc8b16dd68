package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

// Where many workers need the same files they give each other what has come of them, so that nobody waits for the links of those few
// that had them from the beginning. Who lacks pieces asks another for any of them; that one gives the one of those it has that it has
// given least often, and where it has none waits a moment for one. So nobody needs to know who has what, and what was with one is
// soon with several. It gives few at a time: nobody can give a piece on before all of it is there.

const (
	// sharedBlocks is how many blocks a piece has at least of a file that several are getting: smaller ones than else, since nobody
	// can give a piece before all of it is there.
	sharedBlocks = 4
	// missingQuery are the pieces that a client lacks, and eachQuery how many blocks a piece has.
	missingQuery = "missing"
	eachQuery    = "each"
	// pieceHeader says which piece is given.
	pieceHeader = "Snapshot-Piece"
)

const (
	// sharedWait is how long a server waits for a piece that a client lacks, and for its turn.
	sharedWait = 2 * time.Second
	// maxSharing is how many pieces a server gives at a time to clients that lack several.
	maxSharing = 4
)

// pieceSet are some of the pieces of a file; there are at most maxPieces.
type pieceSet uint64

func (s *pieceSet) add(i int)          { *s |= 1 << i }
func (s pieceSet) contains(i int) bool { return s&(1<<i) != 0 }

// tally counts how often each piece of the files of one state was given.
type tally struct {
	mu    sync.Mutex
	state ID
	given map[string]*[maxPieces]int
}

// choose takes one of several pieces, which there must be: one that was given as seldom as any of them.
func (t *tally) choose(of ID, from pieceSet) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != of.State() || t.given == nil {
		t.state, t.given = of.State(), map[string]*[maxPieces]int{}
	}
	if t.given[of.Part] == nil {
		t.given[of.Part] = &[maxPieces]int{}
	}
	given, best := t.given[of.Part], -1
	for _, i := range rand.Perm(maxPieces) {
		if from.contains(i) && (best < 0 || given[i] < given[best]) {
			best = i
		}
	}
	given[best]++
	return best
}

// expect notes what is on its way here, expected that it is no more.
func (s *Store) expect(arrivals []*arrival) {
	s.mu.Lock()
	for _, a := range arrivals {
		if a.only == nil {
			s.arriving[a.ID] = a
		}
	}
	s.mu.Unlock()
	s.grow()
}

func (s *Store) expected(arrivals []*arrival) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range arrivals {
		if s.arriving[a.ID] == a {
			delete(s.arriving, a.ID)
		}
	}
}

// grow tells those who wait that more may be there.
func (s *Store) grow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.grew)
	s.grew = make(chan struct{})
}

// growth is closed when more may be there than now.
func (s *Store) growth() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grew
}

// some opens a file that is held, or on its way, and says which pieces of so many blocks are there. Without any there is no file.
// known is false for one that is neither held nor on its way.
func (s *Store) some(id ID, each uint64) (file *os.File, what held, here pieceSet, known bool) {
	if file, held, err := s.open(id); err == nil {
		return file, held, ^pieceSet(0), true
	}
	s.mu.Lock()
	a := s.arriving[id]
	s.mu.Unlock()
	if a == nil {
		return nil, held{}, 0, false
	}
	a.in.mu.Lock()
	defer a.in.mu.Unlock()
	if a.file == nil || a.each != each || a.here == 0 {
		return nil, held{}, 0, true
	}
	file, err := os.Open(a.file.Name())
	if err != nil {
		return nil, held{}, 0, true
	}
	return file, held{Snapshot: a.Snapshot, blocks: a.blocks}, a.here, true
}

// share gives one of the pieces that a client lacks, once there is one.
func (s *Server) share(w http.ResponseWriter, r *http.Request, id ID) {
	missing, errMissing := strconv.ParseUint(r.URL.Query().Get(missingQuery), 16, 64)
	each, errEach := strconv.ParseUint(r.URL.Query().Get(eachQuery), 10, 64)
	if errMissing != nil || errEach != nil || missing == 0 || each == 0 || each > MaxBytes {
		http.Error(w, "ask for pieces with ?missing=HEX&each=BLOCKS", http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), sharedWait)
	defer cancel()
	for {
		grown := s.store.growth()
		file, held, here, known := s.store.some(id, each)
		if file != nil {
			if here &= pieceSet(missing); here != 0 {
				s.shareIn(ctx, w, file, &held, here, each)
			}
			_ = file.Close()
			if here != 0 {
				return
			}
		}
		select {
		case <-grown:
		case <-ctx.Done():
			status := http.StatusTooEarly
			if !known {
				status = http.StatusNotFound
			}
			http.Error(w, "this worker has nothing of snapshot "+id.String()+" that is missing there", status)
			return
		}
	}
}

// shareIn gives one of several pieces when it is time for it.
func (s *Server) shareIn(ctx context.Context, w http.ResponseWriter, file *os.File, held *held, from pieceSet, each uint64) {
	select {
	case s.sharing <- struct{}{}:
		defer func() { <-s.sharing }()
		sendPiece(w, file, held, s.given.choose(held.ID, from), each)
	case <-ctx.Done():
		http.Error(w, "others come first", http.StatusTooEarly)
	}
}

// sendPiece answers with a piece.
func sendPiece(w http.ResponseWriter, file *os.File, held *held, i int, each uint64) {
	blocks := uint64(len(held.blocks))
	from, to := uint64(i)*each, min(blocks, (uint64(i)+1)*each)
	if from > blocks {
		http.Error(w, fmt.Sprintf("there are %d blocks", blocks), http.StatusBadRequest)
		return
	}
	w.Header().Set(bytesHeader, strconv.FormatUint(held.Bytes, 10))
	w.Header().Set(pieceHeader, strconv.Itoa(i))
	start, end := from*blockBytes, min(to*blockBytes, held.Bytes)
	send(w, bytesOf(held.blocks), io.NewSectionReader(file, int64(start), int64(end-start)), int64(end-start))
}

// streamShared gets from a peer, or from a holder, what that has, until nothing is missing, or nothing more is to be expected. What is
// wrong there is nobody's trouble: of holders it is asked for what is left in another way then.
func (g *gathering) streamShared(from Holder, holds bool) {
	buffer := make([]byte, blockBytes)
	for turn := 0; ; turn++ {
		a, missing := g.lacks(from, turn)
		if a == nil {
			return
		}
		switch err := g.getShared(a, missing, from, buffer); {
		case err == nil:
		case errors.Is(err, errEarly) || errors.Is(err, ErrBusy) || !holds && errors.Is(err, errAbsent):
			if !g.mayGrow(holds) {
				return
			}
			after := earlyWait
			if errors.Is(err, ErrBusy) {
				after = busyWait + rand.N(busyWait)
			}
			wait(g.shared, after)
		default:
			return
		}
	}
}

// errAbsent marks that a peer has not begun to get a file.
var errAbsent = errors.New("it is not there yet")

// lacks chooses a file of those that a peer gives too, another one each turn, and says which of its pieces are asked of nobody now. It
// waits as long as all are on their way; nil when the peer can do nothing any more.
func (g *gathering) lacks(from Holder, turn int) (*arrival, pieceSet) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.shared.Err() == nil && g.local == nil {
		missing := map[*arrival]pieceSet{}
		for _, p := range g.pieces {
			if p.index >= 0 && !p.running && !p.refused[from.String()] && (contains(p.of.Peers, from) || contains(p.of.Holders, from)) {
				set := missing[p.of]
				set.add(p.index)
				missing[p.of] = set
			}
		}
		for i := range g.arrivals {
			if a := g.arrivals[(turn+i)%len(g.arrivals)]; missing[a] != 0 {
				return a, missing[a]
			}
		}
		if g.running == 0 {
			return nil, 0
		}
		g.changed.Wait()
	}
	return nil, 0
}

// mayGrow says whether it is worth to ask somebody again who has nothing to give now: as long as something comes, and a peer also as
// long as there are holders that it gets more from.
func (g *gathering) mayGrow(holds bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !holds && g.holding > 0 || time.Since(g.moved) < stallTimeout
}

// leave notes that a stream from a holder is over.
func (g *gathering) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holding--
}

// getShared gets one of the pieces that are missing of a file from a peer; none if another one has begun to give it meanwhile.
func (g *gathering) getShared(a *arrival, missing pieceSet, from Holder, buffer []byte) error {
	query := fmt.Sprintf("?%s=%x&%s=%d", missingQuery, uint64(missing), eachQuery, a.each)
	response, err := g.ask(g.shared, http.MethodGet, a.Snapshot, query, from)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusServiceUnavailable:
		return unserved(response)
	case http.StatusTooEarly:
		return errEarly
	case http.StatusNotFound:
		return errAbsent
	default:
		return refused(response)
	}
	i, err := strconv.Atoi(response.Header.Get(pieceHeader))
	if bytes := response.Header.Get(bytesHeader); err != nil || i < 0 || i >= maxPieces || !missing.contains(i) || bytes != strconv.FormatUint(a.Bytes, 10) {
		return fmt.Errorf("it gives piece %.20q of a file of %.20q bytes", response.Header.Get(pieceHeader), bytes)
	}
	p := g.claim(a, i)
	if p == nil {
		return nil
	}
	left := []span{{p.from, p.to}}
	file, err := g.open(a)
	if err == nil {
		left, err = g.takePiece(p, false, file, &counter{r: response.Body}, buffer)
	}
	g.came(p, from, left, err, !errors.Is(err, ErrLocal))
	return err
}

// claim takes a piece that is asked of nobody.
func (g *gathering) claim(a *arrival, i int) *piece {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.pieces {
		if p.of == a && p.index == i && !p.running {
			p.running = true
			g.running++
			return p
		}
	}
	return nil
}
