package elastic

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/pkg/elastic/shards"
)

// However many ranks there were and are, a rank asks for just the bytes that it has not, each of them once: less is not possible. It is only
// where there would be too many ranges that it asks for what lies between them, too.
func TestNoByteIsAskedForThatIsNotNeeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		was := sharding{Ranks: rapid.IntRange(1, 12).Draw(t, "before")}
		after := rapid.IntRange(1, 12).Draw(t, "after")
		rank, had := rapid.IntRange(0, after-1).Draw(t, "rank"), rapid.IntRange(-1, was.Ranks-1).Draw(t, "had")
		for range rapid.IntRange(1, 5).Draw(t, "tables") {
			bytes := rapid.SampledFrom([]uint64{1, 4, 8}).Draw(t, "bytes")
			was.Shards = append(was.Shards, shardTable{Length: rapid.Uint64Range(0, 100).Draw(t, "length"), Bytes: bytes})
		}
		most := rapid.SampledFrom([]int{1, 2, wire.MaxRanges}).Draw(t, "most")
		plans, bound, has := make([][]shards.Move, len(was.Shards)), uint64(0), uint64(0)
		for i, table := range was.Shards {
			var parts []shards.Part
			for old := range was.Ranks {
				parts = append(parts, shards.Part{Interval: shards.Even(table.Length, old, was.Ranks)})
			}
			want := shards.Even(table.Length, rank, after)
			var err error
			if plans[i], err = shards.Plan(want, parts); err != nil {
				t.Fatal(err)
			}
			bound += want.Len() * table.Bytes
			if had >= 0 {
				mine := parts[had].Interval
				has += shards.Interval{From: max(mine.From, want.From), To: min(mine.To, want.To)}.Len() * table.Bytes
			}
		}
		asked, kept := uint64(0), uint64(0)
		for source := range was.Ranks {
			ranges := was.ranges(source, plans, most)
			for j, r := range ranges {
				if len(ranges) > most || r[0] >= r[1] || j > 0 && ranges[j-1][1] >= r[0] || r[1] > was.offset(source, len(was.Shards)) {
					t.Fatalf("of the shard of rank %d are asked for %v", source, ranges)
				}
				if source == had {
					kept += r[1] - r[0]
				} else {
					asked += r[1] - r[0]
				}
			}
			for i, moves := range plans {
				for _, m := range moves {
					in := was.place(i, m)
					if m.Part == source && !slices.ContainsFunc(ranges, func(r [2]uint64) bool { return r[0] <= in.From && in.To <= r[1] }) {
						t.Fatalf("%v of the shard of rank %d is not asked for: %v", in, source, ranges)
					}
				}
			}
		}
		if most == wire.MaxRanges && (asked != bound-has || kept != has) {
			t.Fatalf("rank %d of %d, which was %d of %d, gets %d bytes, and has to get %d", rank, after, had, was.Ranks, asked, bound-has)
		}
	})
}
