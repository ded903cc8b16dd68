package elastic

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"unsafe"

	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/share"
	"github.com/concertina-dev/concertina/pkg/elastic/shards"
)

// Number is what a Sharded slice holds.
type Number interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64
}

// Sharded is a slice of Length numbers of which each rank has its own interval: that of shards.Even. When a world of another
// size begins each rank has another one, and gets what it lacks from the others. A world has at most 128 ranks.
//
// The zero value of all but Name and Length is an empty interval; Train fills it when a world begins.
type Sharded[T Number] struct {
	// Name tells it from others of the program.
	Name string
	// Length is that of all intervals together.
	Length uint64
	// Init gives the values with which the training begins, of an interval whose first number is that of index first. They
	// must not depend on the number of ranks. Without Init they are 0.
	Init func(first uint64, values []T)

	first  uint64
	values []T
}

// Local is this rank's interval: the index of its first number in the whole, and its numbers. They are the state: a step
// changes them in place. The slice is another one in each world.
func (s *Sharded[T]) Local() (first uint64, values []T) { return s.first, s.values }

// Shard is a Sharded of any type.
type Shard interface {
	describe() shardTable
	begin(i shards.Interval, anew bool)
	write(w io.Writer) error
	read(i shards.Interval, r io.Reader) error
}

// shardTable is what a snapshot says of a Sharded.
type shardTable struct {
	Name   string `json:"name"`
	Length uint64 `json:"length"`
	// Type is that of its numbers, Bytes the size of one.
	Type  string `json:"type"`
	Bytes uint64 `json:"bytes"`
}

func (s *Sharded[T]) describe() shardTable {
	var one T
	return shardTable{s.Name, s.Length, fmt.Sprintf("%T", one), uint64(unsafe.Sizeof(one))}
}

// begin makes room for an interval; anew fills it with what the training begins with.
func (s *Sharded[T]) begin(i shards.Interval, anew bool) {
	s.first, s.values = i.From, make([]T, i.Len())
	if anew && s.Init != nil {
		s.Init(s.first, s.values)
	}
}

// shardChunk is how many numbers are encoded at a time.
const shardChunk = 1 << 16

func (s *Sharded[T]) write(w io.Writer) error {
	for chunk := range slices.Chunk(s.values, shardChunk) {
		if err := binary.Write(w, binary.LittleEndian, chunk); err != nil {
			return err
		}
	}
	return nil
}

// read replaces the numbers of an interval, in the numbering of the whole.
func (s *Sharded[T]) read(i shards.Interval, r io.Reader) error {
	for chunk := range slices.Chunk(s.values[i.From-s.first:i.To-s.first], shardChunk) {
		if err := binary.Read(r, binary.LittleEndian, chunk); err != nil {
			return err
		}
	}
	return nil
}

// sharding is the second line of the part of a rank: how the state was cut. Every rank had the interval of shards.Even.
type sharding struct {
	Ranks  int          `json:"ranks"`
	Shards []shardTable `json:"shards"`
}

func shardingOf(all []Shard, ranks int) sharding {
	s := sharding{Ranks: ranks}
	for _, shard := range all {
		s.Shards = append(s.Shards, shard.describe())
	}
	return s
}

// layout is the same for parts that fit together.
func (s sharding) layout() string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // numbers and texts
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// offset is where a rank's interval of a Sharded begins in its part.
func (s sharding) offset(rank, of int) (bytes uint64) {
	for i := range s.Shards[:of] {
		bytes += shards.Even(s.Shards[i].Length, rank, s.Ranks).Len() * s.Shards[i].Bytes
	}
	return bytes
}

// place is where what is taken of a Sharded lies in the part that it is taken from.
func (s sharding) place(of int, m shards.Move) shards.Interval {
	table := s.Shards[of]
	at := s.offset(m.Part, of) + (m.From-shards.Even(table.Length, m.Part, s.Ranks).From)*table.Bytes
	return shards.Interval{From: at, To: at + m.Len()*table.Bytes}
}

// ranges are the bytes that plans, one for each Sharded, take from the part of a rank, in at most so many ranges.
func (s sharding) ranges(rank int, plans [][]shards.Move, most int) (ranges [][2]uint64) {
	var taken []shards.Interval
	for i, moves := range plans {
		for _, m := range moves {
			if m.Part == rank {
				taken = append(taken, s.place(i, m))
			}
		}
	}
	for _, i := range shards.Joined(taken, most) {
		ranges = append(ranges, [2]uint64{i.From, i.To})
	}
	return ranges
}

var errShards = errors.New("Options.Shards")

// checkShards says what is wrong with the shards of a program; nil for nothing.
func checkShards(all []Shard) error {
	seen := map[string]bool{}
	for _, shard := range all {
		d := shard.describe()
		if d.Name == "" || len(d.Name) > 256 || seen[d.Name] {
			return fmt.Errorf("%w: %.300q: each has a name of its own of up to 256 bytes", errShards, d.Name)
		}
		if d.Length > 1<<62/d.Bytes {
			return fmt.Errorf("%w: %s has %d numbers of %d bytes: that is too much", errShards, d.Name, d.Length, d.Bytes)
		}
		seen[d.Name] = true
	}
	return nil
}

// checkRanks says whether a snapshot can be taken of what the ranks of the world have between them.
func (r *Run) checkRanks() error {
	if len(r.shards) > 0 && r.world.Size > share.MostShards {
		return fmt.Errorf("a state in shards has at most %d ranks, and this world has %d, of which nobody could take a snapshot: "+
			"set spec.workers.max, and min, to fewer workers", share.MostShards, r.world.Size)
	}
	return nil
}

// beginShards gives each Sharded its interval of the world, with what the training begins with where that is anew.
func (r *Run) beginShards(anew bool) {
	for _, shard := range r.shards {
		shard.begin(shards.Even(shard.describe().Length, r.world.Rank, r.world.Size), anew)
	}
}

// pieces are the files of a snapshot, which this process writes.
func (r *Run) pieces(step uint64) ([]piece, error) {
	h := headerOf(r.shape, step)
	name := r.snapshotName(step)
	if len(r.shards) == 0 {
		return []piece{{name: name, fill: func(w io.Writer) error { return writeSnapshot(w, h, r.state) }}}, nil
	}
	s := shardingOf(r.shards, r.world.Size)
	key := share.Key{Shard: true, Index: r.world.Rank, Of: s.Ranks, Layout: s.layout()}
	all := []piece{{key: key.String(), name: "d" + name, fill: func(w io.Writer) error {
		for _, shard := range r.shards {
			if err := shard.write(w); err != nil {
				return err
			}
		}
		return nil
	}}}
	if r.world.LocalRank == 0 {
		key.Shard, key.Rank, key.Index = false, true, r.world.WorkerRank
		h.Format = shardedFormat
		all = append(all, piece{key: key.String(), name: "r" + name, fill: func(w io.Writer) error {
			encoder := json.NewEncoder(w)
			if err := errors.Join(encoder.Encode(h), encoder.Encode(s)); err != nil || r.state == nil {
				return err
			}
			return r.state.Save(w)
		}})
	}
	return all, nil
}

// maxSharding is the longest second line of a part.
const maxSharding = 16 << 20

// loadShards brings a process to a state in shards.
func (r *Run) loadShards(a *arrival) error {
	if len(a.Shards) == 0 {
		return fmt.Errorf("the world begins after step %d, and the shards of the state are not told: the operator has to be of the agent's version", a.FromStep)
	}
	if err := r.loadSharded(a); err != nil {
		return fmt.Errorf("load snapshot %s: %w", a.Snapshot, err)
	}
	return nil
}

// loadSharded loads the state that a world begins with, which is in shards.
func (r *Run) loadSharded(a *arrival) error {
	if len(r.shards) == 0 {
		return errors.New("it is in shards, and the program has none: Options.Shards is not set")
	}
	file, err := os.Open(a.Snapshot)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	want := headerOf(r.shape, a.FromStep)
	want.Format = shardedFormat
	buffered := bufio.NewReaderSize(file, maxHeader)
	if err := readHeader(buffered, want); err != nil {
		return err
	}
	was, err := readSharding(buffered)
	if err != nil {
		return err
	}
	if now := shardingOf(r.shards, was.Ranks); !slices.Equal(now.Shards, was.Shards) || len(a.Shards) != was.Ranks {
		return fmt.Errorf("it is of the shards %v of %d ranks, in %d parts, and the program has %v", was.Shards, was.Ranks, len(a.Shards), now.Shards)
	}
	if r.state != nil {
		if err := r.state.Load(buffered); err != nil {
			return err
		}
	}
	return r.gather(a, was)
}

func readSharding(r *bufio.Reader) (s sharding, err error) {
	var line []byte
	for more := true; more; {
		part, prefixed, err := r.ReadLine()
		if err != nil {
			return s, fmt.Errorf("its second line: %w", err)
		}
		line, more = append(line, part...), prefixed
		if len(line) > maxSharding {
			return s, errors.New("its second line is too long")
		}
	}
	if err := json.Unmarshal(bytes.TrimSpace(line), &s); err != nil {
		return s, fmt.Errorf("its second line: %w", err)
	}
	if s.Ranks < 1 || s.Ranks > share.MostShards {
		return s, fmt.Errorf("its second line speaks of %d ranks", s.Ranks)
	}
	return s, nil
}

// gather gets this rank's intervals from those that the ranks of the world before had.
func (r *Run) gather(a *arrival, was sharding) error {
	r.beginShards(false)
	plans := make([][]shards.Move, len(r.shards))
	var needed []int
	for i := range r.shards {
		length := was.Shards[i].Length
		var parts []shards.Part
		for rank := range was.Ranks {
			parts = append(parts, shards.Part{Interval: shards.Even(length, rank, was.Ranks)})
		}
		moves, err := shards.Plan(shards.Even(length, r.world.Rank, r.world.Size), parts)
		if err != nil {
			return err
		}
		plans[i] = moves
		for _, m := range moves {
			if !slices.Contains(needed, m.Part) {
				needed = append(needed, m.Part)
			}
		}
	}
	slices.Sort(needed)
	ranges := make([][][2]uint64, len(needed))
	for i, rank := range needed {
		ranges[i] = was.ranges(rank, plans, max(1, wire.MaxRanges/len(needed)))
	}
	files, err := r.want(a, needed, ranges)
	if err != nil {
		return err
	}
	open := make([]*os.File, 0, len(needed))
	defer func() {
		for _, file := range open {
			_ = file.Close()
		}
	}()
	// All before any is read, which may take long: what is open can be read whatever becomes of its name.
	for _, rank := range needed {
		file, err := os.Open(files[rank])
		if err != nil {
			return fmt.Errorf("the shard of rank %d: %w", rank, err)
		}
		open = append(open, file)
	}
	for i, rank := range needed {
		if err := r.gatherFrom(open[i], rank, was, plans); err != nil {
			return fmt.Errorf("the shard of rank %d, %s: %w", rank, files[rank], err)
		}
	}
	return nil
}

// gatherFrom reads what is needed of the shard that a rank had.
func (r *Run) gatherFrom(file io.ReaderAt, rank int, was sharding, plans [][]shards.Move) error {
	for i, moves := range plans {
		for _, m := range moves {
			if m.Part != rank {
				continue
			}
			in := was.place(i, m)
			section := io.NewSectionReader(file, int64(in.From), int64(in.Len()))
			if err := r.shards[i].read(m.Interval, bufio.NewReaderSize(section, pieceBytes)); err != nil {
				return fmt.Errorf("%s: %w", was.Shards[i].Name, err)
			}
		}
	}
	return nil
}

// want has the agent get these bytes of the shards of these ranks, and returns the files that have them. Of none it says so: the agent
// knows then that this process has what it needs.
func (r *Run) want(a *arrival, ranks []int, ranges [][][2]uint64) (map[int]string, error) {
	keys := make([]string, len(ranks))
	for i, rank := range ranks {
		keys[i] = a.Shards[rank]
	}
	r.link.say(wire.Want{Type: wire.TypeWant, Parts: keys, Ranges: ranges})
	var had *wire.Had
	var over error
	err := r.link.await(r.ctx, func(in *inbox) bool {
		over = in.over(a.Round)
		if in.had != nil && in.had.Round == a.Round {
			had, in.had = in.had, nil
		}
		return had != nil || over != nil
	})
	switch {
	case err != nil:
		return nil, err
	case had == nil:
		return nil, over
	case len(had.Parts) != len(keys):
		return nil, fmt.Errorf("the agent has given %d of %d shards", len(had.Parts), len(keys))
	}
	files := map[int]string{}
	for i, part := range had.Parts {
		if part.Key != keys[i] || part.File == "" {
			return nil, fmt.Errorf("the agent has not given the shard %s", keys[i])
		}
		files[ranks[i]] = part.File
	}
	return files, nil
}
