package rendezvous

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Who leaves a world that becomes smaller is what comes of letting one go after the other, and counting anew each time.
func TestChooseLetsGoOneAfterTheOther(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var stay []Member
		rank := map[string]int32{}
		for i := range rapid.IntRange(0, 40).Draw(t, "members") {
			uid := fmt.Sprintf("u%d", i)
			stay = append(stay, Member{UID: uid, Node: fmt.Sprintf("n%d", rapid.IntRange(0, 6).Draw(t, "node"))})
			if rapid.Bool().Draw(t, "ranked") {
				rank[uid] = int32(rapid.IntRange(0, 40).Draw(t, "rank")) // some share one
			}
		}
		before := slices.Clone(stay)
		size := int32(rapid.IntRange(0, 45).Draw(t, "size"))
		got, want := choose(rank, stay, nil, size), oneByOne(rank, stay, size)
		if !slices.Equal(got, want) {
			t.Fatalf("%d of %v with ranks %v: %v stay, want %v", size, stay, rank, got, want)
		}
		if !slices.Equal(stay, before) {
			t.Fatal("the members that were given have changed")
		}
	})
}

// oneByOne lets members go as long as there are too many: of the node that has the fewest of them, the highest rank.
func oneByOne(rank map[string]int32, stay []Member, size int32) []Member {
	stay = slices.Clone(stay)
	for int32(len(stay)) > size {
		onNode := map[string]int{}
		for i := range stay {
			onNode[stay[i].Node]++
		}
		worst := 0
		for i := range stay {
			if cmp.Or(
				cmp.Compare(onNode[stay[worst].Node], onNode[stay[i].Node]),
				cmp.Compare(rank[stay[i].UID], rank[stay[worst].UID]),
			) > 0 {
				worst = i
			}
		}
		stay = slices.Delete(stay, worst, worst+1)
	}
	return stay
}

func BenchmarkChoose(b *testing.B) {
	const members = MaxWorkers
	stay, rank := make([]Member, members), map[string]int32{}
	for i := range stay {
		stay[i] = Member{UID: fmt.Sprintf("u%d", i), Node: fmt.Sprintf("n%d", i/8)}
		rank[stay[i].UID] = int32(i)
	}
	for _, size := range []int32{members * 99 / 100, members / 2} {
		b.Run(fmt.Sprintf("to=%d", size), func(b *testing.B) {
			for b.Loop() {
				choose(rank, stay, nil, size)
			}
		})
	}
}
