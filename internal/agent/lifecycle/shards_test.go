package lifecycle

import (
	"testing"
	"time"
)

// The transcripts in this file are of programs that have their own shards of the state.

const layout = ".2.0123456789abcdef"

// cutUp has a world begin with a state in the shards of two ranks.
func cutUp(h Heard, fromStep uint64, restore bool) Heard {
	return with(going(h, fromStep, true), func(d *Directive) {
		d.World.Restore = restore
		d.World.Parts = []Part{{Key: "r0" + layout}, {Key: "d0" + layout}, {Key: "d1" + layout}}
	})
}

func wants(slot int, keys ...string) Said {
	s := says(slot, Wants)
	s.Parts = keys
	return s
}

// needs is what a process says that wants some of a shard.
func needs(slot int, key string, ranges ...[2]uint64) Said {
	s := wants(slot, key)
	s.Ranges = [][][2]uint64{ranges}
	return s
}

// had is what comes of a process's wish.
func had(slot int, round uint64, f Fetched) HasShards {
	f.Round = round
	return HasShards{FetchShards{Slot: slot, Connection: uint64(slot) + 1, Round: round}, f}
}

func sharded(slot int) Said {
	s := says(slot, Connected)
	s.Sharded = true
	return s
}

// inShards is a worker in round 1, whose processes stand at the barrier after step 17.
func inShards(rest ...line) []line {
	barrier := func(save bool) Heard {
		return with(directive(1, 1, "a"), func(d *Directive) { d.Barrier = Barrier{Attempt: 1, Step: 17, Save: save} })
	}
	return append([]line{
		{0, directive(1, 1, "a"), "start(1) tell"},
		{0, sharded(0), "tell"},
		{0, sharded(1), "tell"},
		{0, says(0, Joined), "tell give0(1) tell"},
		{0, says(1, Joined), "tell give1(1) tell"},
		{1 * second, barrier(false), "arm0(17) arm1(17)"},
		{1 * second, Armed{Slot: 0, Stop: 17}, "tell"},
		{1 * second, Armed{Slot: 1, Stop: 17}, "tell"},
		{1 * second, parked(0, 17), "tell"},
		{1 * second, parked(1, 17), "tell"},
		// Each process has something that no other one can write.
		{2 * second, barrier(true), "save0 save1"},
		{2 * second, saved(0, 17), ""},
		{2 * second, saved(1, 17), ""},
	}, rest...)
}

var shardTranscripts = map[string][]line{
	"who stays loads too": inShards(
		line{3 * second, cutUp(directive(1, 2, "b"), 17, false), "fetch(17) tell"},
		line{3 * second, Fetched{Round: 2}, "give0(2) tell give1(2) tell"},
		line{3 * second, wants(0, "d0"+layout, "d1"+layout), "shards0(2)"},
		line{3 * second, wants(1, "d1"+layout), "shards1(1)"},
		line{4 * second, had(0, 2, Fetched{}), "hand0(2)"},
		line{4 * second, had(0, 2, Fetched{}), ""},
		line{4 * second, had(1, 1, Fetched{}), ""},
		line{4 * second, had(1, 2, Fetched{}), "hand1(2)"},
	),
	"who needs no shard waits for none": inShards(
		line{3 * second, cutUp(directive(1, 2, "b"), 17, false), "fetch(17) tell"},
		line{3 * second, Fetched{Round: 2}, "give0(2) tell give1(2) tell"},
		line{3 * second, wants(0), "hand0(2)"},
	),
	"what is no part of the state is refused": inShards(
		line{3 * second, cutUp(directive(1, 2, "b"), 17, false), "fetch(17) tell"},
		line{3 * second, Fetched{Round: 2}, "give0(2) tell give1(2) tell"},
		line{3 * second, wants(0, "d0.3.0123456789abcdef"), "deny0"},
	),
	"what is wanted twice is got once": inShards(
		line{3 * second, cutUp(directive(1, 2, "b"), 17, false), "fetch(17) tell"},
		line{3 * second, Fetched{Round: 2}, "give0(2) tell give1(2) tell"},
		line{3 * second, needs(0, "d1"+layout, [2]uint64{3, 5}), "shards0(1)[[[3 5]]]"},
		line{3 * second, needs(0, "d1"+layout, [2]uint64{3, 5}), ""},
		line{4 * second, had(0, 2, Fetched{Why: "i/o timeout", Unreached: true}), ""},
		line{4 * second, needs(0, "d1"+layout, [2]uint64{3, 5}), ""},
		line{5 * second, Tick{}, "shards0(1)[[[3 5]]]"},
		line{6 * second, had(0, 2, Fetched{}), "hand0(2)"},
		line{7 * second, wants(0, "d0"+layout), "shards0(1)"}, // it has what it wanted before
	),
	"who waits for shards is refused others": inShards(
		line{3 * second, cutUp(directive(1, 2, "b"), 17, false), "fetch(17) tell"},
		line{3 * second, Fetched{Round: 2}, "give0(2) tell give1(2) tell"},
		line{3 * second, wants(0, "d1"+layout), "shards0(1)"},
		line{3 * second, wants(0, "d0"+layout), "deny0"},
		line{3 * second, wants(1, "d1"+layout), "shards1(1)"},
		line{3 * second, needs(1, "d1"+layout, [2]uint64{3, 5}), "deny1"},
	),
	"nor none": inShards(
		line{3 * second, cutUp(directive(1, 2, "b"), 17, false), "fetch(17) tell"},
		line{3 * second, Fetched{Round: 2}, "give0(2) tell give1(2) tell"},
		line{3 * second, wants(0, "d1"+layout), "shards0(1)"},
		line{3 * second, wants(0), "deny0"},
	),
	"a holder that cannot be reached is asked again": inShards(
		line{3 * second, cutUp(directive(1, 2, "b"), 17, true), "fetch(17) tell"},
		line{3 * second, Fetched{Round: 2}, "give0(2) tell give1(2) tell"},
		line{3 * second, wants(0, "d1"+layout), "shards0(1)"},
		line{4 * second, had(0, 2, Fetched{Why: "i/o timeout", Unreached: true}), ""},
		line{5 * second, Tick{}, "shards0(1)"},
		line{6 * second, had(0, 2, Fetched{}), "hand0(2)"},
	),
	"what is needed of a shard is asked for each time": inShards(
		line{3 * second, cutUp(directive(1, 2, "b"), 17, true), "fetch(17) tell"},
		line{3 * second, Fetched{Round: 2}, "give0(2) tell give1(2) tell"},
		line{3 * second, needs(0, "d1"+layout, [2]uint64{3, 5}), "shards0(1)[[[3 5]]]"},
		line{4 * second, had(0, 2, Fetched{Why: "i/o timeout", Unreached: true}), ""},
		line{4 * second, needs(1, "d1"+layout), "shards1(1)[[]]"},
		line{5 * second, Tick{}, "shards0(1)[[[3 5]]]"},
		line{6 * second, had(0, 2, Fetched{}), "hand0(2)"},
	),
	"who has yet to hear what came of its wish is not asked for again": inShards(
		line{3 * second, cutUp(directive(1, 2, "b"), 17, true), "fetch(17) tell"},
		line{3 * second, Fetched{Round: 2}, "give0(2) tell give1(2) tell"},
		line{3 * second, wants(0, "d1"+layout), "shards0(1)"},
		line{3 * second, wants(1, "d1"+layout), "shards1(1)"},
		line{4 * second, had(0, 2, Fetched{Why: "i/o timeout", Unreached: true}), ""},
		line{5 * second, Tick{}, "shards0(1)"},
		line{6 * second, had(1, 2, Fetched{Why: "i/o timeout", Unreached: true}), ""},
		line{8 * second, Tick{}, "shards1(1)"},
		line{9 * second, had(0, 2, Fetched{Why: "i/o timeout", Unreached: true}), ""},
		line{9 * second, had(1, 2, Fetched{}), "hand1(2)"},
		line{13 * second, Tick{}, "shards0(1)"},
	),
	"a shard that nobody has ends the world before it begins": inShards(
		line{3 * second, cutUp(directive(1, 2, "b"), 17, false), "fetch(17) tell"},
		line{3 * second, Fetched{Round: 2}, "give0(2) tell give1(2) tell"},
		line{3 * second, wants(0, "d1"+layout), "shards0(1)"},
		line{4 * second, had(0, 2, Fetched{Why: "nobody has it"}), "abort0(2) abort1(2)"},
	),
	"each saves what it has left a world with": inShards(
		line{3 * second, aborting(directive(1, 1, "a"), false), "abort0(1) abort1(1)"},
		line{3 * second, leaves(0, Aborted, 17), "tell tell"},
		line{3 * second, savingAfter(directive(1, 1, "a"), 17), "save0"},
		line{3 * second, leaves(1, Aborted, 17), "tell save1"},
		line{3 * second, savingAfter(directive(1, 1, "a"), 17), ""},
	),
	"nothing is got for a world that is over": inShards(
		line{3 * second, cutUp(directive(1, 2, "b"), 17, false), "fetch(17) tell"},
		line{3 * second, Fetched{Round: 2}, "give0(2) tell give1(2) tell"},
		line{3 * second, aborting(cutUp(directive(1, 2, "b"), 17, false), false), "abort0(2) abort1(2)"},
		line{3 * second, wants(0, "d1"+layout), ""},
	),
}

func TestShardTranscripts(t *testing.T) {
	for name, lines := range shardTranscripts {
		t.Run(name, func(t *testing.T) { play(t, InPlace, lines) })
	}
}

// A holder that is missed twice, a while apart, with something that has come whole in between, is not missed for long.
func TestWhatComesMeanwhileIsReached(t *testing.T) {
	far := Unreached{Address: "10.0.0.1", Port: 1, Why: "i/o timeout"}
	m := New(epoch, DefaultLimits(30*second), Shape{Programs: 2, Processes: 2})
	for _, l := range inShards(
		line{at: 3 * second, event: cutUp(directive(1, 2, "b"), 17, true)},
		line{at: 4 * second, event: missing(2, far)},
		line{at: 5 * second, event: Tick{}},
		line{at: 25 * second, event: Fetched{Round: 2}},
		line{at: 26 * second, event: wants(0, "d1"+layout)},
		line{at: 26 * second, event: wants(1, "d1"+layout)},
		line{at: 40 * second, event: had(0, 2, missing(2, far))},
		line{at: 41 * second, event: Tick{}},
		line{at: 100 * second, event: had(1, 2, Fetched{})},
		line{at: 105 * second, event: had(0, 2, missing(2, far))},
	) {
		_ = m.Step(epoch.Add(l.at), l.event)
	}
	if m.Out() || len(m.Unreached()) > 0 {
		t.Errorf("it is out: %t, and names %v", m.Out(), m.Unreached())
	}
	if got := text(m.Step(epoch.Add(106*second), Tick{})); got != "shards0(1)" {
		t.Errorf("then it leads to %q", got)
	}
	for _, at := range []time.Duration{107 * second, 137 * second} {
		_ = m.Step(epoch.Add(at), had(0, 2, missing(2, far)))
	}
	if len(m.Unreached()) != 1 {
		t.Errorf("who misses a holder for long names %v", m.Unreached())
	}
}

// A worker says that it has what it loads once all of its processes have, those that want nothing as well, and of that world alone.
func TestWhoHasItsShardsSaysSo(t *testing.T) {
	m := New(epoch, DefaultLimits(30*second), Shape{Programs: 2, Processes: 2})
	lines := inShards(
		line{at: 3 * second, event: cutUp(directive(1, 2, "b"), 17, false)},
		line{at: 3 * second, event: Fetched{Round: 2}},
		line{at: 3 * second, event: wants(0, "d1"+layout)},
		line{at: 3 * second, event: wants(1)},
		line{at: 4 * second, event: had(0, 2, Fetched{})},
	)
	for i, l := range lines {
		if m.Supplied() {
			t.Errorf("it says so before line %d, %T", i, l.event)
		}
		_ = m.Step(epoch.Add(l.at), l.event)
		if waits := i == len(lines)-3 || i == len(lines)-2; m.Process(0).Loads != waits || m.Process(1).Loads {
			t.Errorf("after line %d, %T, process 0 waits for shards: %t, and process 1: %t", i, l.event, m.Process(0).Loads, m.Process(1).Loads)
		}
	}
	if !m.Supplied() {
		t.Error("it does not say so")
	}
	_ = m.Step(epoch.Add(5*second), cutUp(directive(1, 3, "c"), 17, true))
	if m.In().Round != 3 || m.Supplied() {
		t.Errorf("of round %d it says %t", m.In().Round, m.Supplied())
	}
}

func local(slot int) Said {
	s := says(slot, Connected)
	s.Local = true
	return s
}

// Of programs whose processes have the share of their local rank the whole worker writes, and only when all of it has the state.
var localTranscripts = map[string][]line{
	"each process writes at a barrier": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{0, local(0), "tell"},
		{0, local(1), "tell"},
		{0, says(0, Joined), "tell give0(1) tell"},
		{0, says(1, Joined), "tell give1(1) tell"},
		{1 * second, with(directive(1, 1, "a"), func(d *Directive) { d.Barrier = Barrier{Attempt: 1, Step: 17, Save: true} }), "arm0(17) arm1(17)"},
		{1 * second, Armed{Slot: 0, Stop: 17}, "tell"},
		{1 * second, Armed{Slot: 1, Stop: 17}, "tell"},
		{1 * second, parked(0, 17), "tell save0"},
		{1 * second, parked(1, 17), "tell save1"},
	},
	"each process writes what it has left a world with, once all have left it with the same": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{0, local(0), "tell"},
		{0, local(1), "tell"},
		{0, says(0, Joined), "tell give0(1) tell"},
		{0, says(1, Joined), "tell give1(1) tell"},
		{3 * second, aborting(directive(1, 1, "a"), false), "abort0(1) abort1(1)"},
		{3 * second, savingAfter(directive(1, 1, "a"), 17), ""},
		{3 * second, leaves(0, Aborted, 17), "tell tell"},
		{3 * second, leaves(1, Aborted, 17), "tell save0 save1"},
		{3 * second, savingAfter(directive(1, 1, "a"), 17), ""},
	},
	"nobody writes where one has another state": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{0, local(0), "tell"},
		{0, local(1), "tell"},
		{0, says(0, Joined), "tell give0(1) tell"},
		{0, says(1, Joined), "tell give1(1) tell"},
		{3 * second, aborting(directive(1, 1, "a"), false), "abort0(1) abort1(1)"},
		{3 * second, leaves(0, Aborted, 17), "tell tell"},
		{3 * second, leaves(1, Aborted, 18), "tell"},
		{3 * second, savingAfter(directive(1, 1, "a"), 17), ""},
	},
}

func TestLocalTranscripts(t *testing.T) {
	for name, lines := range localTranscripts {
		t.Run(name, func(t *testing.T) { play(t, InPlace, lines) })
	}
}
