package controller

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// effect is called after each thing that a machine has led to: a write that is about to be made, one that was made and that
// the machine has not heard of, a directive for one member more. The operator dies at the one that is looked for.
func (t *simTraining) effect(op *simOperator, what string) {
	if !t.counting || op.dead || op != t.operator {
		return
	}
	if t.effects++; t.effects == t.killAt {
		t.say("the operator dies after %s", what)
		t.crash()
	}
}

// change has a job grow and lose a worker, with an operator that dies at one of its effects; 0 for never. It returns how
// many there were.
func (t *simTraining) change(killAt int) int {
	defer t.stop()
	t.step, t.lastStep, t.memoryInterval, t.killAt = 100*time.Millisecond, 1200, 20, killAt
	t.do(func() { t.begin(2, 2) })
	if !t.await(5*time.Minute, "the gang trains", t.trainsWith(2)) {
		return 0
	}
	t.do(func() { t.counting = true; t.scale(3) })
	if !t.await(5*time.Minute, "it grows", t.trainsWith(3)) || !t.pass(5*time.Second, nil) {
		return 0
	}
	t.do(func() {
		t.harm(0, "%s ends without a word", t.workers()[1].Name)
		t.kubelets.exit(t.workers()[1], 137)
	})
	if !t.await(5*time.Minute, "it recovers", t.trainsWith(3)) {
		return 0
	}
	t.do(func() { t.counting = false })
	t.await(time.Hour, "the job completes", t.complete)
	t.do(func() {
		if n := uint64(len(t.history.committed)); n != t.lastStep {
			t.fail("promise 5: the job is complete after %d steps of %d", n, t.lastStep)
		}
	})
	return t.effects
}

// TestAWorldSurvivesAKillAtAnyEffect: before a round is written, after that and before anybody is told, and when some
// members were told and others not.
func TestAWorldSurvivesAKillAtAnyEffect(t *testing.T) {
	effects, deaths := 0, 0
	for killAt := 0; killAt <= effects; killAt++ {
		t.Run(fmt.Sprintf("effect %d", killAt), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				switch n := newSimTraining(t, 3).change(killAt); {
				case killAt == 0:
					effects = n
				case n >= killAt:
					deaths++
				}
			})
		})
	}
	// What happens in one moment has no order of its own, so a run may have an effect or two less than the one before.
	if effects == 0 || deaths < effects*9/10 {
		t.Errorf("there were %d effects, and %d operators died", effects, deaths)
	}
	t.Logf("%d effects, %d deaths", effects, deaths)
}
