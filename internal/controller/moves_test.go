package controller

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// moving is a job one of whose workers moves: who takes its place is there, and it was not told to leave yet. It takes a step.
func moving(spare bool) (state *State, moved, newcomer *corev1.Pod, step func() Plan) {
	if spare {
		state = withSpare(5, 4)
	} else {
		state = withSpare(4, 4)
		state.Job.Spec.Workers.Spares = nil
	}
	workers := int32(len(state.Pods))
	newcomer = growthPod(state, workers, trainerRuns)
	newcomer.Annotations[annotationMoves] = "true"
	starts(state, newcomer)
	state.Grant.Known, state.Grant.Count, state.Grant.Leave = true, workers, map[types.UID]fleet.Leave{}
	return state, state.Pods[1], newcomer, func() Plan {
		plan := NewPlan(state, settings)
		carryOutMarks(plan)
		state.Job.Status = plan.Status
		state.Memory.remember(&plan)
		return plan
	}
}

// starts has a pod be a newcomer that is not ready.
func starts(state *State, pod *corev1.Pod) {
	state.World.Members[string(pod.UID)] = rendezvous.MemberObservation{Joined: true, Connected: true, WorkerRank: -1, LastSeen: now}
}

// Who takes the place of a worker that moves does so whoever else is lost meanwhile, or leaves for a moment: neither it nor the replacement
// of that one goes before the worker that moves.
func TestALossIsNoMove(t *testing.T) {
	for name, spare := range map[string]bool{"with a spare": true, "without spares": false} {
		for event, happens := range map[string]func(state *State, look func(...string)){
			"another one is lost": func(state *State, look func(...string)) {
				lost := state.Pods[2]
				state.Pods = slices.DeleteFunc(slices.Clone(state.Pods), func(pod *corev1.Pod) bool { return pod == lost })
				delete(state.World.Members, string(lost.UID))
				look()
				look()
				standsBy(state, growthPod(state, 7, trainerRuns))
			},
			"another one leaves for a moment": func(state *State, look func(...string)) {
				uid := string(state.Pods[2].UID)
				was := state.World.Members[uid]
				seen := was
				seen.Terminating = true
				state.World.Members[uid] = seen
				look("digits-1-2")
				look("digits-1-2")
				state.World.Members[uid] = was
			},
			"it leaves for a moment itself": func(state *State, look func(...string)) {
				uid := state.Pods[1].UID
				state.Grant.Leave[uid] = fleet.Leave{Reason: fleet.Moved, For: "team/big"}
				look()
				was := state.World.Members[string(uid)]
				seen := was
				seen.Terminating = true
				state.World.Members[string(uid)] = seen
				look("digits-1-1")
				look("digits-1-1")
				state.World.Members[string(uid)] = was
			},
		} {
			t.Run(event+" "+name, func(t *testing.T) {
				state, moved, newcomer, step := moving(spare)
				look := func(want ...string) {
					t.Helper()
					if got := slices.Sorted(maps.Keys(leavers(step()))); !slices.Equal(got, want) {
						t.Fatalf("leavers are %v, want %v", got, want)
					}
				}
				look()
				happens(state, look)
				look()
				look()
				standsBy(state, newcomer)
				state.Grant.Leave[moved.UID] = fleet.Leave{Reason: fleet.Moved, For: "team/big"}
				step() // it is marked
				look(moved.Name)
				look(moved.Name)
			})
		}
	}
}

// A spare that leaves for a moment is no move either, whoever is ready.
func TestASpareThatComesBackIsNoMove(t *testing.T) {
	state, _, newcomer, step := moving(true)
	standsBy(state, newcomer)
	spare := string(state.Pods[4].UID)
	was := state.World.Members[spare]
	for _, terminating := range []bool{false, true, true, false, false} {
		seen := was
		seen.Terminating = terminating
		state.World.Members[spare] = seen
		got := leavers(step())
		if terminating {
			delete(got, state.Pods[4].Name)
		}
		if len(got) > 0 {
			t.Fatalf("leavers are %v", got)
		}
	}
}

// Once the worker that moves leaves, the one that takes its place is one too many no more: it goes where the job is to have fewer, in
// whatever world it is.
func TestWhoCameForAMoveCountsOnceTheOtherLeaves(t *testing.T) {
	state, moved, newcomer, step := moving(true)
	standsBy(state, newcomer)
	state.Grant.Leave[moved.UID] = fleet.Leave{Reason: fleet.Moved, For: "team/big"}
	step() // it is marked
	if got := leavers(step()); len(got) != 1 || got[moved.Name] != rendezvous.ReasonMoved {
		t.Fatalf("leavers are %v", got)
	}
	state.Job.Status.Workers.Target, state.Grant.Count = ptr.To[int32](4), 4
	for range 2 {
		if got := leavers(step()); len(got) != 2 || got[newcomer.Name] != rendezvous.ReasonScaledDown {
			t.Errorf("the job is to have 4 of 5 workers and one that moves, and leavers are %v", got)
		}
	}
}
