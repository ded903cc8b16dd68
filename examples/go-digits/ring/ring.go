// Package ring sums vectors over all ranks of a world: each rank talks to its two neighbours alone,
// and sends 2·(W-1)/W of the vector, whatever the number W of ranks (Patarasuk and Yuan, "Bandwidth
// optimal all-reduce algorithms for clusters of workstations", 2009).
package ring

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"
)

// Timeout bounds one AllReduce: a rank that is slower than this is taken for lost.
const Timeout = 2 * time.Minute

// Ring is one rank's place in the ring. Its methods are for one goroutine.
type Ring struct {
	ctx        context.Context
	rank, size int
	next, prev net.Conn
	unwatch    func() bool

	// A goroutine of its own writes, so that two neighbours that send to each other both read.
	sends        chan []byte
	sent         chan error
	outgoing, in []byte
}

func newRing(ctx context.Context, rank, size int, next, prev net.Conn) *Ring {
	r := &Ring{
		ctx: ctx, rank: rank, size: size, next: next, prev: prev,
		sends: make(chan []byte), sent: make(chan error, 1),
	}
	r.unwatch = context.AfterFunc(ctx, func() {
		_ = next.Close()
		_ = prev.Close()
	})
	go func() {
		for frame := range r.sends {
			_, err := next.Write(frame)
			r.sent <- err
		}
	}()
	return r
}

// Close ends the connections to the neighbours.
func (r *Ring) Close() {
	if r.size == 1 {
		return
	}
	r.unwatch()
	_ = r.next.Close()
	_ = r.prev.Close()
	close(r.sends)
}

// AllReduce replaces the vector by its sum over all ranks, which must give vectors of one length.
// Every rank gets the same bits. Errors: a neighbour is lost, or slower than Timeout, or its vector
// has another length; the vector is then of no use, and neither is the ring. When the context of
// Dial has ended, the error is its cause.
func (r *Ring) AllReduce(vector []float64) error {
	if r.size == 1 {
		return nil
	}
	deadline := time.Now().Add(Timeout)
	err := errors.Join(r.next.SetWriteDeadline(deadline), r.prev.SetReadDeadline(deadline))
	if err == nil {
		err = r.reduce(vector)
	}
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	if err != nil {
		return fmt.Errorf("sum over %d ranks: %w", r.size, err)
	}
	return nil
}

func (r *Ring) reduce(vector []float64) error {
	for turn := range r.size - 1 {
		// The sum of a chunk travels around the ring and grows.
		err := r.exchange(r.chunk(vector, r.rank-turn), r.chunk(vector, r.rank-turn-1), add)
		if err != nil {
			return err
		}
	}
	for turn := range r.size - 1 {
		// Complete sums travel around the ring.
		err := r.exchange(r.chunk(vector, r.rank+1-turn), r.chunk(vector, r.rank-turn), replace)
		if err != nil {
			return err
		}
	}
	return nil
}

func add(sum *float64, x float64)     { *sum += x }
func replace(old *float64, x float64) { *old = x }

// chunk is the i-th of size parts of the vector, counted around the ring.
func (r *Ring) chunk(vector []float64, i int) []float64 {
	i = ((i % r.size) + r.size) % r.size
	return vector[i*len(vector)/r.size : (i+1)*len(vector)/r.size]
}

const (
	headerBytes = 8
	numberBytes = 8
)

// exchange sends one chunk to the next rank and merges the one that comes from the previous.
func (r *Ring) exchange(send, receive []float64, merge func(*float64, float64)) error {
	r.outgoing = binary.LittleEndian.AppendUint64(r.outgoing[:0], uint64(len(send)))
	for _, x := range send {
		r.outgoing = binary.LittleEndian.AppendUint64(r.outgoing, math.Float64bits(x))
	}
	r.sends <- r.outgoing
	err := r.receive(receive, merge)
	if err != nil {
		// The neighbour on the other side may never read: do not wait for it.
		_ = r.next.Close()
	}
	sent := <-r.sent
	if err != nil {
		return err // what became of the sending then says nothing
	}
	return sent
}

func (r *Ring) receive(chunk []float64, merge func(*float64, float64)) error {
	var header [headerBytes]byte
	if _, err := io.ReadFull(r.prev, header[:]); err != nil {
		return err
	}
	if n := binary.LittleEndian.Uint64(header[:]); n != uint64(len(chunk)) {
		return fmt.Errorf("the previous rank sent %d numbers where %d were due: do all ranks have the same model?", n, len(chunk))
	}
	if need := len(chunk) * numberBytes; cap(r.in) < need {
		r.in = make([]byte, need)
	}
	r.in = r.in[:len(chunk)*numberBytes]
	if _, err := io.ReadFull(r.prev, r.in); err != nil {
		return err
	}
	for i := range chunk {
		merge(&chunk[i], math.Float64frombits(binary.LittleEndian.Uint64(r.in[i*numberBytes:])))
	}
	return nil
}
