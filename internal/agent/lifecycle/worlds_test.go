package lifecycle

import "time"

// The transcripts in this file are of programs that speak to the agent, and of the strategy Restart.

func says(slot int, what What) Said {
	return Said{Slot: slot, Connection: uint64(slot) + 1, What: what}
}
func parked(slot int, step uint64) Said { s := says(slot, Parked); s.Step = step; return s }
func saved(slot int, step uint64) Said  { s := says(slot, Saved); s.Step = step; return s }
func with(h Heard, change func(*Directive)) Heard {
	change(&h.Directive)
	return h
}

func armedAt(h Heard, attempt, step uint64) Heard {
	return with(h, func(d *Directive) { d.Barrier = Barrier{Attempt: attempt, Step: step} })
}

func saving(h Heard) Heard {
	return with(h, func(d *Directive) { d.Barrier.Save = true })
}

func aborting(h Heard, planned bool) Heard {
	return with(h, func(d *Directive) { d.Abort = &Abort{Reason: "a worker was lost", Planned: planned} })
}

func raising(h Heard) Heard   { return with(h, func(d *Directive) { d.Raise = true }) }
func finishing(h Heard) Heard { return with(h, func(d *Directive) { d.Finish = true }) }
func standby(h Heard) Heard   { return with(h, func(d *Directive) { d.Standby = true }) }

func ahead(h Heard, step uint64) Heard {
	return with(h, func(d *Directive) { d.Prefetch = &Prefetch{Snapshot: Snapshot{Round: 1, Step: step}} })
}

// going is a round that continues its predecessor; from a snapshot when the program restores.
func going(h Heard, fromStep uint64, restore bool) Heard {
	return with(h, func(d *Directive) {
		d.World.Parent, d.World.FromStep, d.World.Restore = d.Round-1, fromStep, restore
		if restore {
			d.World.Snapshot = &Snapshot{Round: d.World.Parent, Step: fromStep}
		}
	})
}

// held is a directive with a hold, which answers a report of that time.
func held(h Heard, hold uint64, sent time.Duration) Heard {
	h.Sent = epoch.Add(sent)
	return with(h, func(d *Directive) { d.Hold = hold })
}

// inRound begins a transcript with both processes in the world of round 1.
func inRound(rest ...line) []line {
	return append([]line{
		{0, directive(1, 1, "a"), "start(1) tell"},
		{0, says(0, Connected), "tell"},
		{0, says(1, Connected), "tell"},
		{0, says(0, Joined), "tell give0(1) tell"},
		{0, says(1, Joined), "tell give1(1) tell"},
	}, rest...)
}

var inPlaceTranscripts = map[string][]line{
	"a world grows": inRound(
		line{1 * second, armedAt(directive(1, 1, "a"), 1, 17), "arm0(17) arm1(17)"},
		line{1 * second, Armed{0, 17}, "tell"},
		line{1 * second, Armed{1, 18}, "tell"},
		line{2 * second, parked(0, 17), "tell"},
		line{2 * second, parked(1, 18), "tell"},
		line{3 * second, armedAt(directive(1, 1, "a"), 2, 18), "arm0(18) arm1(18)"},
		line{3 * second, Armed{0, 18}, "tell go0 tell"},
		line{3 * second, Armed{1, 18}, "tell"},
		line{3 * second, armedAt(directive(1, 1, "a"), 1, 17), ""},
		line{4 * second, parked(0, 18), "tell"},
		line{5 * second, saving(armedAt(directive(1, 1, "a"), 2, 18)), "save0"},
		line{5 * second, saving(armedAt(directive(1, 1, "a"), 2, 18)), ""},
		line{6 * second, saved(0, 18), ""},
		line{6 * second, going(directive(1, 2, "b"), 18, false), "tell give0(2) tell give1(2) tell"},
		line{7 * second, armedAt(directive(1, 1, "a"), 3, 20), "refuse"},
	),
	"a process that saves its state is given the next world when it has done so": inRound(
		line{1 * second, armedAt(directive(1, 1, "a"), 1, 17), "arm0(17) arm1(17)"},
		line{1 * second, Armed{0, 17}, "tell"},
		line{1 * second, Armed{1, 17}, "tell"},
		line{2 * second, parked(0, 17), "tell"},
		line{2 * second, parked(1, 17), "tell"},
		line{3 * second, saving(armedAt(directive(1, 1, "a"), 1, 17)), "save0"},
		line{4 * second, going(directive(1, 2, "b"), 17, false), "tell give1(2) tell"},
		line{5 * second, saved(0, 16), ""},
		line{6 * second, saved(0, 17), "give0(2) tell"},
	),
	"a newcomer fetches the snapshot before its world is durable": {
		{0, ahead(directive(1, 0, ""), 17), ""},
		{0, standby(directive(1, 0, "")), "start(0) tell"},
		{0, says(0, Connected), "tell"},
		{0, says(1, Connected), "tell"},
		{1 * second, ahead(standby(directive(1, 0, "")), 17), "ahead(17)"},
		{1 * second, says(0, Joined), "tell"},
		{2 * second, ahead(standby(directive(1, 0, "")), 17), ""},
		{3 * second, ahead(standby(directive(1, 0, "")), 18), "ahead(18)"},
		{4 * second, going(directive(1, 2, "b"), 18, true), "fetch(18) tell"},
		{4 * second, says(1, Joined), "tell"},
		{5 * second, Fetched{Round: 2}, "give0(2) tell give1(2) tell"},
	},
	"a barrier that is lifted": inRound(
		line{1 * second, armedAt(directive(1, 1, "a"), 1, 17), "arm0(17) arm1(17)"},
		line{1 * second, Armed{0, 17}, "tell"},
		line{1 * second, Armed{1, 17}, "tell"},
		line{2 * second, parked(0, 17), "tell"},
		line{3 * second, directive(2, 0, ""), ""},
		line{3 * second, directive(2, 1, "a"), "lift0 tell go0 tell lift1 tell"},
		line{4 * second, parked(1, 17), "tell go1 tell"},
		line{5 * second, armedAt(directive(2, 1, "a"), 2, 30), "arm0(30) arm1(30)"},
	),
	"a hold that nobody renews ends": inRound(
		line{1 * second, held(armedAt(directive(1, 1, "a"), 1, 17), 1, 1*second), "arm0(17) arm1(17)"},
		line{1 * second, Armed{0, 17}, "tell"},
		line{1 * second, Armed{1, 18}, "tell"},
		line{2 * second, parked(0, 17), "tell"},
		line{9 * second, held(armedAt(directive(1, 1, "a"), 1, 17), 2, 8*second), ""},
		line{12 * second, held(armedAt(directive(1, 1, "a"), 1, 17), 2, 11*second), ""},
		line{37 * second, Tick{}, ""},
		line{38 * second, Tick{}, "lift0 tell go0 tell lift1 tell"},
		line{39 * second, held(armedAt(directive(1, 1, "a"), 1, 17), 2, 38*second), ""},
		line{40 * second, going(directive(1, 2, "b"), 17, false), "refuse tell"},
		line{41 * second, held(armedAt(directive(1, 1, "a"), 2, 19), 3, 40*second), "arm0(19) arm1(19)"},
	),
	"a renewal that was long on its way": inRound(
		line{1 * second, held(armedAt(directive(1, 1, "a"), 1, 17), 1, 1*second), "arm0(17) arm1(17)"},
		line{1 * second, Armed{0, 17}, "tell"},
		line{1 * second, Armed{1, 17}, "tell"},
		line{30 * second, held(armedAt(directive(1, 1, "a"), 1, 17), 2, 3*second), ""},
		line{32 * second, Tick{}, ""},
		line{33 * second, Tick{}, "lift0 tell lift1 tell"},
	),
	"an operator that does not know the world yet renews": inRound(
		line{1 * second, held(armedAt(directive(1, 1, "a"), 1, 17), 7, 1*second), "arm0(17) arm1(17)"},
		line{1 * second, Armed{0, 17}, "tell"},
		line{1 * second, Armed{1, 17}, "tell"},
		line{20 * second, held(directive(2, 0, ""), 1, 20*second), ""},
		line{49 * second, Tick{}, ""},
		line{50 * second, Tick{}, "lift0 tell lift1 tell"},
	),
	"an operator that knows no holds": inRound(
		line{1 * second, armedAt(directive(1, 1, "a"), 1, 17), "arm0(17) arm1(17)"},
		line{1 * second, Armed{0, 17}, "tell"},
		line{1 * second, Armed{1, 17}, "tell"},
		line{600 * second, Tick{}, ""},
	),
	"a new operator wants a snapshot at a barrier of the same number": inRound(
		line{1 * second, saving(armedAt(directive(1, 1, "a"), 2, 17)), "arm0(17) arm1(17)"},
		line{1 * second, Armed{0, 17}, "tell"},
		line{1 * second, Armed{1, 17}, "tell"},
		line{2 * second, parked(0, 17), "tell save0"},
		line{3 * second, directive(2, 1, "a"), "lift0 tell go0 tell lift1 tell"},
		line{4 * second, saving(armedAt(directive(2, 1, "a"), 2, 30)), "arm0(30) arm1(30)"},
		line{4 * second, Armed{0, 30}, "tell"},
		line{5 * second, parked(0, 30), "tell save0"},
	),
	"a new operator counts its barriers anew": inRound(
		line{1 * second, armedAt(directive(1, 1, "a"), 3, 17), "arm0(17) arm1(17)"},
		line{1 * second, Armed{0, 17}, "tell"},
		line{1 * second, Armed{1, 17}, "tell"},
		line{2 * second, directive(2, 1, "a"), "lift0 tell lift1 tell"},
		line{3 * second, armedAt(directive(2, 1, "a"), 1, 30), "arm0(30) arm1(30)"},
		line{3 * second, armedAt(directive(1, 1, "a"), 4, 40), "refuse"},
	),
	"a process that steps past the barrier is told to go on to it": inRound(
		line{1 * second, armedAt(directive(1, 1, "a"), 1, 17), "arm0(17) arm1(17)"},
		line{1 * second, Armed{0, 18}, "tell"},
		line{1 * second, parked(0, 17), "tell go0 tell"},
	),
	"a worker is lost": inRound(
		line{1 * second, says(0, Faulted), "tell tell"},
		line{2 * second, aborting(directive(1, 1, "a"), false), "abort1(1)"},
		line{3 * second, says(1, Aborted), "tell"},
		line{4 * second, going(directive(1, 2, "b"), 16, true), "fetch(16) tell"},
		line{5 * second, Fetched{Round: 1}, ""},
		line{5 * second, Fetched{Round: 2}, "give0(2) tell give1(2) tell"},
		line{6 * second, says(1, Aborted), "tell"},
		line{7 * second, aborting(directive(1, 2, "b"), false), "abort0(2) abort1(2)"},
	),
	"a world that is over when it is heard of is given to nobody": inRound(
		line{1 * second, aborting(going(directive(1, 2, "b"), 16, false), false), "tell abort0(1) abort1(1)"},
		line{2 * second, says(0, Aborted), "tell tell"},
		line{2 * second, says(1, Aborted), "tell"},
		line{3 * second, going(directive(1, 3, "c"), 16, true), "fetch(16) tell"},
		line{4 * second, Fetched{Round: 3}, "give0(3) tell give1(3) tell"},
	),
	"a world that is over when it is heard of, by processes that stand where it begins": inRound(
		line{1 * second, armedAt(directive(1, 1, "a"), 1, 17), "arm0(17) arm1(17)"},
		line{1 * second, Armed{0, 17}, "tell"},
		line{1 * second, Armed{1, 17}, "tell"},
		line{2 * second, parked(0, 17), "tell"},
		line{2 * second, parked(1, 17), "tell"},
		line{3 * second, aborting(going(directive(1, 2, "b"), 17, false), false), "tell abort0(1) abort1(1) tell"},
		line{4 * second, leaves(0, Aborted, 17), "tell tell"},
		line{4 * second, leaves(1, Aborted, 17), "tell tell"},
		line{5 * second, savingAfter(directive(1, 2, "b"), 17), "save0"},
		line{5 * second, saved(0, 17), ""},
		line{6 * second, aborting(going(directive(1, 3, "c"), 17, false), false), "tell tell tell tell"},
		line{7 * second, going(directive(1, 4, "d"), 17, false), "tell give0(4) tell give1(4) tell"},
	),
	"a process that does not leave its world is killed": inRound(
		line{1 * second, aborting(directive(1, 1, "a"), false), "abort0(1) abort1(1)"},
		line{2 * second, says(0, Aborted), "tell tell"},
		line{5 * second, Tick{}, "look[1]"},
		line{6 * second, Tick{}, "kill"},
		line{6 * second, Exited{0, 137}, "tell"},
		line{6 * second, Exited{1, 137}, "tell kill leave(137)"},
	),
	"a process that is parked leaves like any other": inRound(
		line{1 * second, armedAt(directive(1, 1, "a"), 1, 17), "arm0(17) arm1(17)"},
		line{1 * second, Armed{0, 17}, "tell"},
		line{1 * second, Armed{1, 17}, "tell"},
		line{2 * second, parked(0, 17), "tell"},
		line{3 * second, aborting(directive(1, 1, "a"), false), "abort0(1) abort1(1)"},
		line{3 * second, parked(1, 17), "tell"},
		line{3 * second, says(0, Aborted), "tell tell"},
		line{4 * second, going(directive(1, 2, "b"), 16, true), "fetch(16) tell"},
		line{4 * second, Fetched{Round: 2}, "give0(2) tell"},
		line{4 * second, says(1, Aborted), "tell give1(2) tell"},
	),
	"the next world comes while a process still trains": inRound(
		line{1 * second, says(0, Faulted), "tell tell"},
		line{2 * second, going(directive(1, 2, "b"), 16, true), "fetch(16) tell abort1(1)"},
		line{2 * second, Fetched{Round: 2}, "give0(2) tell"},
		line{6 * second, Tick{}, "look[1]"},
		line{7 * second, Tick{}, "kill"},
	),
	"a world that is over before a process is in it": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{0, says(0, Connected), "tell"},
		{1 * second, aborting(directive(1, 1, "a"), false), ""},
		{2 * second, says(0, Joined), "tell tell"},
		{9 * second, Tick{}, ""},
		{9 * second, directive(1, 2, "b"), "tell give0(2) tell"},
	},
	"there is no place for the snapshot": inRound(
		line{1 * second, aborting(directive(1, 1, "a"), false), "abort0(1) abort1(1)"},
		line{1 * second, says(0, Aborted), "tell tell"},
		line{1 * second, says(1, Aborted), "tell"},
		line{2 * second, going(directive(1, 2, "b"), 16, true), "fetch(16) tell"},
		line{3 * second, Fetched{Round: 2, Why: "the volume is full", Local: true}, "kill"},
		line{3 * second, Exited{0, 137}, "tell"},
		line{3 * second, Exited{1, 137}, "tell kill leave(137)"},
	),
	"nobody gives the snapshot, and then an older one": inRound(
		line{1 * second, aborting(directive(1, 1, "a"), false), "abort0(1) abort1(1)"},
		line{1 * second, says(0, Aborted), "tell tell"},
		line{1 * second, says(1, Aborted), "tell"},
		line{2 * second, going(directive(1, 2, "b"), 16, true), "fetch(16) tell"},
		line{3 * second, Fetched{Round: 2, Why: "no holder gives it"}, "tell"},
		line{4 * second, aborting(directive(1, 2, "b"), false), ""},
		line{5 * second, going(directive(1, 3, "c"), 12, true), "fetch(12) tell"},
		line{6 * second, Fetched{Round: 3}, "give0(3) tell give1(3) tell"},
		line{7 * second, aborting(directive(1, 3, "c"), false), "abort0(3) abort1(3)"},
		line{7 * second, says(0, Aborted), "tell tell"},
		line{7 * second, says(1, Aborted), "tell"},
		line{8 * second, going(directive(1, 4, "d"), 12, true), "fetch(12) tell"},
		line{9 * second, Fetched{Round: 4, Why: "no holder gives it"}, "tell"},
	),
	"nobody gives any snapshot": inRound(
		line{1 * second, aborting(directive(1, 1, "a"), false), "abort0(1) abort1(1)"},
		line{1 * second, says(0, Aborted), "tell tell"},
		line{1 * second, says(1, Aborted), "tell"},
		line{2 * second, going(directive(1, 2, "b"), 16, true), "fetch(16) tell"},
		line{3 * second, Fetched{Round: 2, Why: "no holder gives it"}, "tell"},
		line{4 * second, aborting(directive(1, 2, "b"), false), ""},
		line{5 * second, going(directive(1, 3, "c"), 12, true), "fetch(12) tell"},
		line{6 * second, Fetched{Round: 3, Why: "no holder gives it either"}, "kill"},
		line{6 * second, Exited{0, 137}, "tell"},
		line{6 * second, Exited{1, 137}, "tell kill leave(137)"},
	),
	"those who have the snapshot cannot be reached for a while": inRound(
		line{1 * second, aborting(directive(1, 1, "a"), false), "abort0(1) abort1(1)"},
		line{1 * second, says(0, Aborted), "tell tell"},
		line{1 * second, says(1, Aborted), "tell"},
		line{2 * second, going(directive(1, 2, "b"), 16, true), "fetch(16) tell"},
		line{3 * second, Fetched{Round: 2, Why: "i/o timeout", Unreached: true}, ""},
		line{3*second + second/2, Tick{}, ""},
		line{4 * second, Tick{}, "fetch(16)"},
		line{5 * second, Fetched{Round: 2, Why: "i/o timeout", Unreached: true}, ""},
		line{7 * second, Tick{}, "fetch(16)"},
		line{8 * second, Fetched{Round: 2}, "give0(2) tell give1(2) tell"},
		line{30 * second, Tick{}, ""},
	),
	"those who have the snapshot cannot be reached": inRound(
		line{1 * second, aborting(directive(1, 1, "a"), false), "abort0(1) abort1(1)"},
		line{1 * second, says(0, Aborted), "tell tell"},
		line{1 * second, says(1, Aborted), "tell"},
		line{2 * second, going(directive(1, 2, "b"), 16, true), "fetch(16) tell"},
		line{3 * second, Fetched{Round: 2, Why: "i/o timeout", Unreached: true}, ""},
		line{4 * second, Tick{}, "fetch(16)"},
		line{33 * second, Fetched{Round: 2, Why: "i/o timeout", Unreached: true}, "tell"},
		line{34 * second, aborting(directive(1, 2, "b"), false), ""},
		line{35 * second, going(directive(1, 3, "c"), 16, true), "fetch(16) tell"},
		line{36 * second, Fetched{Round: 3}, "give0(3) tell give1(3) tell"},
	),
	"a fault of its own": inRound(
		line{1 * second, says(0, Faulted), "tell tell"},
		line{2 * second, raising(directive(1, 1, "a")), "raise0"},
		line{2 * second, raising(directive(1, 1, "a")), ""},
		line{3 * second, Said{Slot: 0, Connection: 1, What: Disconnected}, "tell"},
		line{3 * second, Exited{0, 1}, "tell term[1]"},
	),
	"the end": inRound(
		line{1 * second, says(0, Finished), "tell tell"},
		line{1 * second, says(1, Finished), "tell"},
		line{2 * second, finishing(directive(1, 1, "a")), "end0 end1"},
		line{2 * second, finishing(directive(1, 1, "a")), ""},
		line{3 * second, Exited{0, 0}, "tell"},
		line{3 * second, Exited{1, 0}, "tell kill leave(0)"},
	),
	"a worker is lost when others have finished": inRound(
		line{1 * second, says(0, Finished), "tell tell"},
		line{2 * second, aborting(directive(1, 1, "a"), false), "abort1(1)"},
		line{2 * second, says(1, Aborted), "tell"},
		line{3 * second, with(going(directive(1, 2, "b"), 0, false), func(d *Directive) { d.World.Restore = true }),
			"tell give0(2) tell give1(2) tell"},
	),
	"a planned round finds a process that trains": inRound(
		line{1 * second, armedAt(directive(1, 1, "a"), 1, 17), "arm0(17) arm1(17)"},
		line{1 * second, Armed{0, 17}, "tell"},
		line{1 * second, Armed{1, 17}, "tell"},
		line{1 * second, parked(0, 17), "tell"},
		line{2 * second, going(directive(1, 2, "b"), 17, false), "refuse tell"},
		line{2 * second, parked(1, 17), "tell"},
		line{3 * second, going(directive(1, 2, "b"), 16, false), "refuse tell"},
		line{3 * second, directive(2, 1, "a"), "lift0 tell go0 tell lift1 tell go1 tell"},
		line{4 * second, going(directive(2, 2, "b"), 17, false), "refuse tell"},
		line{5 * second, aborting(going(directive(2, 2, "b"), 17, false), false), "tell abort0(1) abort1(1)"},
	),
	"a standby": {
		{0, directive(1, 0, ""), ""},
		{1 * second, standby(directive(1, 0, "")), "start(0) tell"},
		{1 * second, standby(directive(1, 0, "")), ""},
		{2 * second, says(0, Connected), "tell"},
		{2 * second, says(1, Connected), "tell"},
		{2 * second, says(0, Joined), "tell"},
		{2 * second, says(1, Joined), "tell"},
		{3 * second, going(directive(1, 7, "a"), 18, true), "fetch(18) tell"},
		{4 * second, Fetched{Round: 7}, "give0(7) tell give1(7) tell"},
	},
	"a standby that is told to go": {
		{0, standby(directive(1, 0, "")), "start(0) tell"},
		{1 * second, Terminated{}, "tell term[0 1]"},
	},
	"a world goes on while SIGTERM waits": inRound(
		line{1 * second, Terminated{}, "tell"},
		line{2 * second, armedAt(directive(1, 1, "a"), 1, 17), "arm0(17) arm1(17)"},
		line{2 * second, Armed{0, 17}, "tell"},
		line{2 * second, Armed{1, 17}, "tell"},
		line{2 * second, parked(0, 17), "tell"},
		line{2 * second, parked(1, 17), "tell"},
		line{3 * second, going(directive(1, 2, "b"), 17, false), "tell give0(2) tell give1(2) tell"},
		line{4 * second, released(directive(1, 2, "b")), "term[0 1]"},
	),
	"a process that a launcher started anew gets its place": inRound(
		line{1 * second, Said{Slot: 0, Connection: 9, What: Connected}, "tell"},
		line{1 * second, Said{Slot: 0, Connection: 1, What: Disconnected}, ""},
		line{1 * second, Said{Slot: 0, Connection: 9, What: Joined}, "tell give0(1) tell"},
	),
	"a process that does not have the state of its world": inRound(
		line{1 * second, armedAt(directive(1, 1, "a"), 1, 17), "arm0(17) arm1(17)"},
		line{1 * second, Armed{0, 17}, "tell"},
		line{1 * second, Armed{1, 17}, "tell"},
		line{1 * second, parked(0, 17), "tell"},
		line{1 * second, parked(1, 17), "tell"},
		line{2 * second, going(directive(1, 2, "b"), 17, false), "tell give0(2) tell give1(2) tell"},
		line{3 * second, Said{Slot: 0, Connection: 9, What: Connected}, "tell"},
		line{3 * second, Said{Slot: 0, Connection: 9, What: Joined}, "tell deny0"},
	),
	"a world that goes back to nothing known": inRound(
		line{1 * second, with(going(directive(1, 2, "b"), 9, true), func(d *Directive) { d.World.Snapshot = nil }), "refuse"},
	),
	"secrets": {
		{0, with(directive(1, 0, ""), func(d *Directive) { d.Key = "x" }), "trust"},
		{0, with(directive(1, 0, ""), func(d *Directive) { d.Key = "x" }), ""},
		{0, with(directive(2, 0, ""), func(d *Directive) { d.Key = "y" }), "trust"},
		{0, with(directive(1, 0, ""), func(d *Directive) { d.Key = "z" }), "refuse"},
	},
}

var restartTranscripts = map[string][]line{
	"a planned change": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, aborting(directive(1, 1, "a"), true), "checkpoint"},
		{1 * second, aborting(directive(1, 1, "a"), true), ""},
		{3 * second, Checkpointed{Round: 1}, "term[0 1]"},
		{4 * second, Exited{0, 143}, "tell"},
		{4 * second, Exited{1, 143}, "tell kill tell"},
		{5 * second, directive(1, 2, "b"), "start(2) tell"},
		{6 * second, Exited{0, 0}, "tell"},
		{6 * second, Exited{1, 0}, "tell kill leave(0)"},
	},
	"a worker is lost while others write their checkpoint": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, aborting(directive(1, 1, "a"), true), "checkpoint"},
		{2 * second, aborting(directive(1, 1, "a"), false), "term[0 1]"},
		{3 * second, Checkpointed{Round: 1}, ""},
		{7 * second, Tick{}, "kill"},
	},
	"a program ends when its peer is lost": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, Exited{0, 1}, "tell term[1]"},
		{1 * second, Exited{1, 143}, "tell kill"},
		{2 * second, aborting(directive(1, 1, "a"), false), "tell"},
		{3 * second, directive(1, 2, "b"), "start(2) tell"},
	},
	"one that has ended by a fault of memory looks at its device once": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, Exited{0, 139}, "tell term[1]"},
		{1 * second, Exited{1, 143}, "tell kill"},
		{2 * second, aborting(directive(1, 1, "a"), false), "tell"},
		{3 * second, directive(1, 2, "b"), "start(2)check tell"},
		{4 * second, aborting(directive(1, 2, "b"), false), "term[0 1]"},
		{4 * second, Exited{0, 143}, "tell"},
		{4 * second, Exited{1, 143}, "tell kill tell"},
		{5 * second, directive(1, 3, "c"), "start(3) tell"},
	},
	"one that does so as the next world is there": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, Exited{0, 135}, "tell term[1]"},
		{2 * second, directive(1, 2, "b"), ""},
		{2 * second, Exited{1, 143}, "tell kill start(2)check tell"},
	},
	"one that a library has ended, most likely since its peer is lost": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, Exited{0, 134}, "tell term[1]"},
		{1 * second, Exited{1, 143}, "tell kill"},
		{2 * second, aborting(directive(1, 1, "a"), false), "tell"},
		{3 * second, directive(1, 2, "b"), "start(2) tell"},
	},
	"a program fails and nobody says anything": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, Exited{0, 1}, "tell term[1]"},
		{1 * second, Exited{1, 143}, "tell kill"},
		{3 * second, Tick{}, ""},
		{4 * second, Tick{}, "leave(1)"},
	},
	"a failure that is the program's own": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, Exited{0, 1}, "tell term[1]"},
		{1 * second, Exited{1, 143}, "tell kill"},
		{2 * second, raising(directive(1, 1, "a")), "leave(1)"},
	},
	"a failure that turns out to be the program's own": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, Exited{0, 1}, "tell term[1]"},
		{1 * second, aborting(directive(1, 1, "a"), false), ""},
		{1 * second, Exited{1, 143}, "tell kill tell"},
		{2 * second, raising(aborting(directive(1, 1, "a"), false)), "leave(1)"},
	},
	"SIGTERM while it stops": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, aborting(directive(1, 1, "a"), false), "term[0 1]"},
		{2 * second, Terminated{}, "tell"},
		{2 * second, Exited{0, 143}, "tell"},
		{2 * second, Exited{1, 143}, "tell kill leave(143)"},
	},
	"SIGTERM while it is out": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, aborting(directive(1, 1, "a"), false), "term[0 1]"},
		{2 * second, Exited{0, 143}, "tell"},
		{2 * second, Exited{1, 143}, "tell kill tell"},
		{2 * second, Terminated{}, "tell leave(143)"},
	},
	"a standby runs nothing": {
		{0, standby(directive(1, 0, "")), ""},
	},
}
