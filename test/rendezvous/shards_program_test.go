package rendezvous

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/concertina-dev/concertina/pkg/elastic"
)

// shardsVariable makes a process of this test's binary a training program, whose state is in shards.
const shardsVariable = "TEST_SHARDS"

// holdVariable names a file: as long as it is there no step is made.
const holdVariable = "TEST_SHARDS_HOLD"

// lengths are those of its weights, moments and bulk: no number of ranks divides them. Of the bulk a rank of another world needs some blocks of
// what others have, and not all.
const (
	weightsLength = 100_003
	momentsLength = 9
	bulkLength    = 8<<20 + 7
	// markEvery is which numbers of the bulk each step changes.
	markEvery = 1 << 16
)

// shardedProgram is a program whose state is in shards. Each step changes all numbers by what they were, their index and the number of
// the step, so what they have to be follows from how many steps were made.
type shardedProgram struct {
	weights elastic.Sharded[uint64]
	moments elastic.Sharded[float32]
	bulk    elastic.Sharded[uint8]
	steps   uint64
}

func newShardedProgram() *shardedProgram {
	return &shardedProgram{
		weights: elastic.Sharded[uint64]{Name: "weights", Length: weightsLength, Init: func(first uint64, values []uint64) {
			for i := range values {
				values[i] = first + uint64(i)
			}
		}},
		moments: elastic.Sharded[float32]{Name: "moments", Length: momentsLength},
		bulk: elastic.Sharded[uint8]{Name: "bulk", Length: bulkLength, Init: func(first uint64, values []uint8) {
			for i := range values {
				values[i] = bulkAfter(first+uint64(i), 0)
			}
		}},
	}
}

func weightAfter(was, index, step uint64) uint64 { return was*6364136223846793005 + index + step }
func momentAfter(was float32, index, step uint64) float32 {
	return was*0.9 + float32(index)/7 + float32(step)/3
}

// bulkAfter is a number of the bulk after so many steps.
func bulkAfter(index, steps uint64) uint8 {
	if index%markEvery == 0 {
		return uint8(steps)
	}
	return uint8((index * 0x9e3779b97f4a7c15) >> 56)
}

func (p *shardedProgram) update(step uint64) {
	first, weights := p.weights.Local()
	for i := range weights {
		weights[i] = weightAfter(weights[i], first+uint64(i), step)
	}
	first, moments := p.moments.Local()
	for i := range moments {
		moments[i] = momentAfter(moments[i], first+uint64(i), step)
	}
	first, bulk := p.bulk.Local()
	for i := (markEvery - first%markEvery) % markEvery; i < uint64(len(bulk)); i += markEvery {
		bulk[i] = uint8(step)
	}
	p.steps = step
}

// check says what is not as an undisturbed training would have it.
func (p *shardedProgram) check() error {
	first, weights := p.weights.Local()
	for i := range weights {
		want := first + uint64(i)
		for step := uint64(1); step <= p.steps; step++ {
			want = weightAfter(want, first+uint64(i), step)
		}
		if weights[i] != want {
			return fmt.Errorf("after %d steps weight %d is %d, not %d", p.steps, first+uint64(i), weights[i], want)
		}
	}
	first, bulk := p.bulk.Local()
	for i := range bulk {
		if want := bulkAfter(first+uint64(i), p.steps); bulk[i] != want {
			return fmt.Errorf("after %d steps number %d of the bulk is %d, not %d", p.steps, first+uint64(i), bulk[i], want)
		}
	}
	first, moments := p.moments.Local()
	for i := range moments {
		want := float32(0)
		for step := uint64(1); step <= p.steps; step++ {
			want = momentAfter(want, first+uint64(i), step)
		}
		if math.Float32bits(moments[i]) != math.Float32bits(want) {
			return fmt.Errorf("after %d steps moment %d is %v, not %v", p.steps, first+uint64(i), moments[i], want)
		}
	}
	return nil
}

// trainInShards is that program. It ends with 9 when a world begins with another state than the one after its steps.
func trainInShards() int {
	_, _, _ = syscall.Syscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0) // as a node that ends takes all along
	p := newShardedProgram()
	run, err := elastic.Join(context.Background(), elastic.Options{
		Samples: 1 << 20, Epochs: 1 << 10, GlobalBatch: 16, Seed: 1,
		State: elastic.Gob(&p.steps), Shards: []elastic.Shard{&p.weights, &p.moments, &p.bulk},
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	err = run.Train(func(ctx context.Context, w elastic.World) error {
		if err := p.check(); err != nil {
			fmt.Println(err)
			os.Exit(9)
		}
		_, local := p.weights.Local()
		fmt.Printf("round %d: rank %d of %d begins after step %d with %d weights\n", w.Round, w.Rank, w.Size, p.steps, len(local))
		peers, err := connectAll(ctx, w)
		if err != nil {
			return err
		}
		defer peers.close()
		for isHeld() && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		for step := range run.Steps(ctx) {
			if err := peers.meet(step.Number()); err != nil {
				return err
			}
			p.update(step.Number())
			select {
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		return run.Err()
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// peers are the connections between rank 0 and the others.
type peers struct {
	conns []net.Conn
	rank  int
}

func isHeld() bool {
	_, err := os.Stat(os.Getenv(holdVariable))
	return err == nil
}

func connectAll(ctx context.Context, w elastic.World) (*peers, error) {
	p := &peers{rank: w.Rank}
	if w.Rank > 0 {
		for ctx.Err() == nil {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", w.MasterAddress)
			if err == nil {
				p.conns = append(p.conns, conn)
				context.AfterFunc(ctx, func() { _ = conn.Close() })
				return p, nil
			}
			if !errors.Is(err, syscall.ECONNREFUSED) {
				return nil, err
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
		return nil, context.Cause(ctx)
	}
	defer context.AfterFunc(ctx, func() { _ = w.MasterListener.Close() })()
	for range w.Size - 1 {
		conn, err := w.MasterListener.Accept()
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		p.conns = append(p.conns, conn)
	}
	return p, nil
}

// meet waits until all ranks are in a step.
func (p *peers) meet(step uint64) error {
	word := binary.LittleEndian.AppendUint64(nil, step)
	hear := func(conn net.Conn) error {
		var got [8]byte
		if _, err := io.ReadFull(bufio.NewReaderSize(conn, 8), got[:]); err != nil {
			return err
		}
		if binary.LittleEndian.Uint64(got[:]) != step {
			return fmt.Errorf("another rank is in step %d, this one in %d", binary.LittleEndian.Uint64(got[:]), step)
		}
		return nil
	}
	say := func(conn net.Conn) error { _, err := conn.Write(word); return err }
	first, second := say, hear
	if p.rank == 0 {
		first, second = hear, say
	}
	for _, do := range []func(net.Conn) error{first, second} {
		for _, conn := range p.conns {
			if err := do(conn); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *peers) close() {
	for _, conn := range p.conns {
		_ = conn.Close()
	}
}
