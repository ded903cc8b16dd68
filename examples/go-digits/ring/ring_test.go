package ring

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/pkg/elastic"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// worlds are the places of so many ranks.
func worlds(size int) ([]elastic.World, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	all := make([]elastic.World, size)
	for rank := range all {
		all[rank] = elastic.World{Round: 1, Rank: rank, Size: size, MasterAddress: listener.Addr().String()}
	}
	all[0].MasterListener = listener
	return all, nil
}

// together runs one function per rank, with its ring, and returns their errors.
func together(ctx context.Context, size int, do func(rank int, ring *Ring) error) ([]error, error) {
	all, err := worlds(size)
	if err != nil {
		return nil, err
	}
	defer func() { _ = all[0].MasterListener.Close() }()
	errs := make([]error, size)
	var ranks sync.WaitGroup
	for _, w := range all {
		ranks.Go(func() {
			ring, err := Dial(ctx, w)
			if err == nil {
				defer ring.Close()
				err = do(w.Rank, ring)
			}
			errs[w.Rank] = err
		})
	}
	ranks.Wait()
	return errs, nil
}

func TestAllReduceSums(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 7).Draw(t, "ranks")
		vectors := make([][]float64, size)
		length := rapid.IntRange(0, 40).Draw(t, "length")
		want := make([]float64, length)
		for rank := range vectors {
			vectors[rank] = make([]float64, length)
			for i := range vectors[rank] {
				// Small whole numbers add up exactly in any order.
				x := float64(rapid.IntRange(-1000, 1000).Draw(t, "x"))
				vectors[rank][i] = x
				want[i] += 2 * x
			}
		}
		errs, err := together(context.Background(), size, func(rank int, ring *Ring) error {
			if err := ring.AllReduce(vectors[rank]); err != nil {
				return err
			}
			// A second time: the ring is as good as new.
			vector := make([]float64, length)
			if rank == 0 {
				copy(vector, vectors[0])
			}
			if err := ring.AllReduce(vector); err != nil {
				return err
			}
			for i := range vector {
				vectors[rank][i] += vector[i]
			}
			return nil
		})
		if err := errors.Join(err, errors.Join(errs...)); err != nil {
			t.Fatal(err)
		}
		for rank := range vectors {
			if !slices.Equal(vectors[rank], want) {
				t.Fatalf("rank %d of %d has %v, want %v", rank, size, vectors[rank], want)
			}
		}
	})
}

func TestVectorsLargerThanAnySocketBuffer(t *testing.T) {
	const length = 1 << 18
	errs, err := together(context.Background(), 3, func(rank int, ring *Ring) error {
		for _, conn := range []net.Conn{ring.next, ring.prev} {
			tcp := conn.(*net.TCPConn)
			if err := errors.Join(tcp.SetReadBuffer(64<<10), tcp.SetWriteBuffer(64<<10)); err != nil {
				return err
			}
		}
		vector := make([]float64, length)
		for i := range vector {
			vector[i] = float64(rank + i%5)
		}
		if err := ring.AllReduce(vector); err != nil {
			return err
		}
		for i, x := range vector {
			if x != float64(3+3*(i%5)) {
				return fmt.Errorf("element %d is %v", i, x)
			}
		}
		return nil
	})
	if err := errors.Join(err, errors.Join(errs...)); err != nil {
		t.Fatal(err)
	}
}

func TestTheEndOfTheContextFreesEveryRank(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	over := errors.New("the world is over")
	var waiting sync.WaitGroup
	waiting.Add(2)
	go func() {
		waiting.Wait()
		cancel(over)
	}()
	errs, err := together(ctx, 3, func(rank int, ring *Ring) error {
		if rank == 1 {
			// It never takes part: the others hang in the collective.
			<-ctx.Done()
			return context.Cause(ctx)
		}
		waiting.Done()
		return ring.AllReduce(make([]float64, 100))
	})
	if err != nil {
		t.Fatal(err)
	}
	for rank, err := range errs {
		if !errors.Is(err, over) {
			t.Errorf("rank %d ended with %v, want %v", rank, err, over)
		}
	}
}

// A rank may have its ring in the very moment in which the context ends, and nobody else would close it.
func TestTheContextEndsAsTheRingForms(t *testing.T) {
	for range 100 {
		ctx, cancel := context.WithCancel(context.Background())
		if _, err := together(ctx, 3, func(int, *Ring) error { cancel(); return nil }); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
}

func TestALostRankFreesTheOthers(t *testing.T) {
	errs, err := together(context.Background(), 4, func(rank int, ring *Ring) error {
		if rank == 2 {
			return nil // its connections are closed
		}
		// So much that rank 3 still sends when it notices that rank 2 has gone.
		return ring.AllReduce(make([]float64, 1<<20))
	})
	if err != nil {
		t.Fatal(err)
	}
	for rank, err := range errs {
		if rank != 2 && err == nil {
			t.Errorf("rank %d did not notice", rank)
		}
		if errors.Is(err, net.ErrClosed) {
			t.Errorf("rank %d tells of a connection that it closed itself: %v", rank, err)
		}
	}
}

func TestVectorsOfDifferentLengths(t *testing.T) {
	errs, err := together(context.Background(), 2, func(rank int, ring *Ring) error {
		return ring.AllReduce(make([]float64, 10+10*rank))
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(errs, func(err error) bool {
		return err != nil && strings.Contains(err.Error(), "the same model")
	}) {
		t.Errorf("got %v", errs)
	}
}

func TestStrangersAreTurnedAway(t *testing.T) {
	all, err := worlds(2)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = all[0].MasterListener.Close() }()
	for _, line := range []string{
		"GET / HTTP/1.1\r\n\r\n", "{}\n", `{"round":9,"rank":1,"size":2}` + "\n", `{"round":1,"rank":7,"size":2}` + "\n",
		`{"round":1,"rank":0,"size":2}` + "\n", strings.Repeat("x", 10_000),
	} {
		conn, err := net.Dial("tcp", all[0].MasterAddress)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = conn.Write([]byte(line))
	}
	var ranks sync.WaitGroup
	for _, w := range all {
		ranks.Go(func() {
			ring, err := Dial(context.Background(), w)
			if err != nil {
				t.Error(err)
				return
			}
			defer ring.Close()
			vector := []float64{float64(w.Rank), 1}
			if err := ring.AllReduce(vector); err != nil || vector[0] != 1 || vector[1] != 2 {
				t.Errorf("rank %d has %v, %v", w.Rank, vector, err)
			}
		})
	}
	ranks.Wait()
}

func TestARankThatNeverComes(t *testing.T) {
	all, err := worlds(3)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = all[0].MasterListener.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	var ranks sync.WaitGroup
	for _, w := range all[:2] {
		ranks.Go(func() {
			if ring, err := Dial(ctx, w); err == nil {
				ring.Close()
				t.Errorf("rank %d formed a ring of 3 with 2", w.Rank)
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("rank %d: %v", w.Rank, err)
			}
		})
	}
	ranks.Wait()
}

func TestRankZeroWithoutAListener(t *testing.T) {
	_, err := Dial(context.Background(), elastic.World{Rank: 0, Size: 2})
	if err == nil || !strings.Contains(err.Error(), "launch PerProcess") {
		t.Errorf("got %v", err)
	}
}
