package replay

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func endless(n, most int) (jobs []Job) {
	for i := range n {
		jobs = append(jobs, Job{Name: fmt.Sprint("job-", i), Workers: 1, Program: &Scaling{Steps: 1e9, Parallel: 1, Most: most}})
	}
	return jobs
}

func ownRules() Events {
	return Events{Join: 30 * time.Second, Pause: time.Second, Settings: shipped}
}

// Two nodes with a device each. The first is there from 0, so its worker makes a step a second from 30 s on. The second
// comes at 100 s, joins at 130 s after a pause of 1 s, and goes at 200 s without notice: a step is lost, and the world
// stands still for 5 s. The first one goes at 400 s, when 5 minutes of training have passed once: what came after that is
// lost. It comes again at 500 s and trains from 530 s to the end at 600 s.
func TestChurnByHand(t *testing.T) {
	churn := Churn{Changes: []NodeChange{
		{At: 0, Node: 0}, {At: 100 * time.Second, Node: 1}, {At: 200 * time.Second, Node: 1, Gone: true},
		{At: 400 * time.Second, Node: 0, Gone: true}, {At: 500 * time.Second, Node: 0},
	}, Until: 600 * time.Second, Recovery: 5 * time.Second, Saved: 5 * time.Minute}
	got, err := ownRules().Churn(endless(1, 2), 1, churn)
	if err != nil {
		t.Fatal(err)
	}
	// 100 s with one, 69 s with two, 195 s with one: 433 steps but for the one lost in 364 s of training, the last 64 s of
	// which are lost at the pace that it had on average.
	made := 100 + 2*69 + 195.0
	kept := made - 1 - 64*made/364
	if want := kept + 70; math.Abs(got.Steps-want) > 1 {
		t.Errorf("%.1f steps, want %.1f", got.Steps, want)
	}
	// With a minute's notice the second worker leaves at 140 s, after 9 s, in a pause of 1 s, and nothing is lost.
	churn.Notice = time.Minute
	if noticed, err := ownRules().Churn(endless(1, 2), 1, churn); err != nil || math.Abs(noticed.Steps-(100+2*9+259+70)) > 1 {
		t.Errorf("with notice %+v, %v", noticed, err)
	}
	// So it is with a job that restarts; without notice that loses what it made since it saved.
	if most := churn.Clairvoyant(1, 30*time.Second); most != 370+70+70 {
		t.Errorf("a clairvoyant makes %g steps", most)
	}
	if made, nodes := churn.Rigid(1, 30*time.Second); made != 370+70 || nodes != 1 {
		t.Errorf("a gang of %d makes %g", nodes, made)
	}
	if made := churn.Restarting(1, 30*time.Second); made != 70+2*70+170+70 {
		t.Errorf("a job that restarts makes %g", made)
	}
	churn.Notice = 0
	if made := churn.Restarting(1, 30*time.Second); made != 70+0+0+70 {
		t.Errorf("a job that restarts, without notice, makes %g", made)
	}
}

// Whatever comes and goes: nobody makes more than a clairvoyant, and the same input gives the same output.
func TestNobodyBeatsTheClairvoyant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var churn Churn
		there := map[int]bool{}
		at := time.Duration(0)
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			node := rapid.IntRange(0, 5).Draw(t, "node")
			churn.Changes = append(churn.Changes, NodeChange{At: at, Node: node, Gone: there[node]})
			there[node] = !there[node]
			at += time.Duration(rapid.IntRange(0, 400).Draw(t, "later")) * time.Second
		}
		churn.Until = at + time.Minute
		churn.Notice = time.Duration(rapid.IntRange(0, 120).Draw(t, "notice")) * time.Second
		churn.Recovery, churn.Saved = 5*time.Second, 5*time.Minute
		jobs := endless(rapid.IntRange(1, 3).Draw(t, "jobs"), 12)
		run := func() *Churned {
			got, err := ownRules().Churn(jobs, 2, churn)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		got, most := run(), churn.Clairvoyant(2, 30*time.Second)
		rigid, _ := churn.Rigid(2, 30*time.Second)
		for name, made := range map[string]float64{"ours": got.Steps, "rigid": rigid, "restarting": churn.Restarting(2, 30*time.Second)} {
			if made < -1e-6 || made > most*(1+1e-9)+1e-6 {
				t.Fatalf("%s makes %g steps, a clairvoyant %g", name, made, most)
			}
		}
		if again := run(); *again != *got {
			t.Fatalf("%+v, and again %+v", got, again)
		}
	})
}

func TestChurnThatCannotBe(t *testing.T) {
	good := Churn{Changes: []NodeChange{{Node: 0}}, Until: time.Hour, Saved: time.Minute}
	for want, change := range map[string]func(*Churn){
		"out of order":      func(c *Churn) { c.Changes = []NodeChange{{At: time.Minute, Node: 0}, {Node: 1}} },
		"cannot come twice": func(c *Churn) { c.Changes = []NodeChange{{Node: 0}, {Node: 0}} },
		"without having":    func(c *Churn) { c.Changes = []NodeChange{{Node: 0, Gone: true}} },
		"needs an end":      func(c *Churn) { c.Until = 0 },
		"no time below":     func(c *Churn) { c.Notice = -1 },
		"no cluster":        func(c *Churn) { c.Changes = nil },
	} {
		bad := good
		change(&bad)
		if _, err := ownRules().Churn(endless(1, 1), 1, bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
