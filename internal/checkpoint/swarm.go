package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"time"
)

// Where many workers need the same files they give each other what has come of them, so that nobody waits for the links of those few
// that had them from the beginning. Who lacks pieces asks a peer for any of them; the peer gives one that it has, and where it has
// none waits a moment for one. So nobody needs to know who has what.

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

// sharedWait is how long a server waits for a piece that a client lacks.
const sharedWait = 2 * time.Second

// pieceSet are some of the pieces of a file; there are at most maxPieces.
type pieceSet uint64

func (s *pieceSet) add(i int)          { *s |= 1 << i }
func (s pieceSet) contains(i int) bool { return s&(1<<i) != 0 }

// any is one of them, which there must be.
func (s pieceSet) any() int {
	for range rand.IntN(bits.OnesCount64(uint64(s))) {
		s &= s - 1
	}
	return bits.TrailingZeros64(uint64(s))
}

// expect notes what is on its way here, expected that it is no more.
func (s *Store) expect(arrivals []*arrival) {
	s.mu.Lock()
	for _, a := range arrivals {
		s.arriving[a.ID] = a
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

// some opens a file that is held, or on its way, and says which pieces of so many blocks are there; none, and no file, where that is so.
func (s *Store) some(id ID, each uint64) (*os.File, held, pieceSet) {
	if file, held, err := s.open(id); err == nil {
		return file, held, ^pieceSet(0)
	}
	s.mu.Lock()
	a := s.arriving[id]
	s.mu.Unlock()
	if a == nil {
		return nil, held{}, 0
	}
	a.in.mu.Lock()
	defer a.in.mu.Unlock()
	if a.file == nil || a.each != each || a.here == 0 {
		return nil, held{}, 0
	}
	file, err := os.Open(a.file.Name())
	if err != nil {
		return nil, held{}, 0
	}
	return file, held{Snapshot: a.Snapshot, blocks: a.blocks}, a.here
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
		file, held, here := s.store.some(id, each)
		if here &= pieceSet(missing); file != nil && here != 0 {
			defer func() { _ = file.Close() }()
			sendPiece(w, file, &held, here.any(), each)
			return
		}
		if file != nil {
			_ = file.Close()
		}
		select {
		case <-grown:
		case <-ctx.Done():
			http.Error(w, "this worker has nothing of snapshot "+id.String()+" that is missing there", http.StatusTooEarly)
			return
		}
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
	send(w, bytesOf(held.blocks), io.NewSectionReader(file, int64(start), int64(end-start)))
}

// streamShared gets from a peer what that has, until nothing is missing, or nothing more is to be expected. What is wrong there is
// nobody's trouble: the holders have all of it.
func (g *gathering) streamShared(from Holder) {
	buffer := make([]byte, blockBytes)
	for turn := 0; ; turn++ {
		a, missing := g.lacks(from, turn)
		if a == nil {
			return
		}
		switch err := g.getShared(a, missing, from, buffer); {
		case err == nil:
		case errors.Is(err, errEarly):
			if !g.mayGrow() {
				return
			}
		default:
			return
		}
	}
}

// lacks chooses a file of those that a peer gives too, another one each turn, and says which of its pieces are asked of nobody now. It
// waits as long as all are on their way; nil when the peer can do nothing any more.
func (g *gathering) lacks(from Holder, turn int) (*arrival, pieceSet) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.shared.Err() == nil && g.local == nil {
		missing := map[*arrival]pieceSet{}
		for _, p := range g.pieces {
			if p.index >= 0 && !p.running && contains(p.of.Peers, from) {
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

// mayGrow says whether it is worth to ask a peer again that has nothing now: it gets more from holders, as this worker does.
func (g *gathering) mayGrow() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.holding > 0 || time.Since(g.moved) < stallTimeout
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
		wait(g.shared, earlyWait)
		return errEarly
	case http.StatusTooEarly:
		return errEarly
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
		left, err = g.takePiece(p, file, &counter{r: response.Body}, buffer)
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
