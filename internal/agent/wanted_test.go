package agent

import (
	"slices"
	"testing"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// Of each file it is known who has it, and who is getting it as well.
func TestWhoHasAFileAndWhoGetsIt(t *testing.T) {
	of := lifecycle.Snapshot{Round: 2, Step: 7, Bytes: 3}
	holders := []lifecycle.Holder{{Address: "a", Port: 1, Parts: []int{0}}, {Address: "b", Port: 2, Parts: []int{0, 1}}}
	peers := []lifecycle.Holder{{Address: "c", Port: 3, Parts: []int{1, 5}}, {Address: "d", Port: 4}}
	addresses := func(all []checkpoint.Holder) (names string) {
		for i := range all {
			names += all[i].Address
		}
		return names
	}
	got := wanted(of, []lifecycle.Part{{Key: "r0.2.0123456789abcdef", Bytes: 1}, {Key: "s0.2.0123456789abcdef", Bytes: 2}}, holders, peers)
	var files []string
	for i := range got {
		files = append(files, got[i].String()+" "+addresses(got[i].Holders)+" "+addresses(got[i].Peers))
	}
	if want := []string{"2-7.r0.2.0123456789abcdef ab ", "2-7.s0.2.0123456789abcdef b c"}; !slices.Equal(files, want) {
		t.Errorf("parts come as %q, want %q", files, want)
	}
	got = wanted(of, nil, holders, peers)
	if len(got) != 1 || got[0].String() != "2-7" || addresses(got[0].Holders) != "ab" || addresses(got[0].Peers) != "cd" {
		t.Errorf("a whole one comes as %+v", got)
	}
}

// A program that wants no shard is told of none, also in a world that begins with nothing.
func TestAProgramThatWantsNoShard(t *testing.T) {
	if got := shardsIn(lifecycle.World{}, nil, nil); len(got) > 0 {
		t.Errorf("there are %+v", got)
	}
}

// The machine is told which parts have not come.
func TestWhichPartsAreMissing(t *testing.T) {
	store, err := checkpoint.Open(t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := checkpoint.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	parts := []lifecycle.Part{{Key: "r0.2.0123456789abcdef", Bytes: 1}, {Key: "s0.2.0123456789abcdef", Bytes: 2}}
	err = store.Fetch(t.Context(), identity, wanted(lifecycle.Snapshot{Round: 2, Step: 7, Bytes: 3}, parts, nil, nil)...)
	if got := fetchedAs(3, err); got.Round != 3 || got.Why == "" || !slices.Equal(got.Lacks, []string{parts[0].Key, parts[1].Key}) {
		t.Errorf("nobody has any, and the machine is told %+v (%v)", got, err)
	}
}
