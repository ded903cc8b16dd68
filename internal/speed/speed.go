// Package speed estimates how fast a job trains with numbers of workers that it has not had, from those that it has.
//
// It is pure. The model has the terms of Pollux's throughput model (Qiao et al., OSDI 2021, section 3.2) for a batch
// that stays the same: a step with n workers takes
//
//	serial + compute/n + [n > 1] (near latency + near bandwidth × (n-2)) + [nodes > 1] (far latency + far bandwidth × (n-2))
//
// seconds. The terms add: Pollux also lets gradients be exchanged while others are computed. No term is below 0, so n
// times a step's time only grows with n and with nodes: no speed is more than linear, whatever was observed.
package speed

import (
	"math"
	"time"
)

// Observation is what was seen at one size.
type Observation struct {
	// Workers and Nodes are how many there were, at least 1.
	Workers, Nodes int
	// StepsPerSecond is the pace there, pauses and the first steps left out; Steps how many steps it is from.
	StepsPerSecond float64
	Steps          int64
	// Age is how long ago the last of them was.
	Age time.Duration
}

// usable says whether an observation can be true.
func (o *Observation) usable() bool {
	return o.Workers >= 1 && o.Nodes >= 1 && o.Nodes <= o.Workers && o.Workers <= mostWorkers && o.Steps >= 1 && o.Age >= 0 &&
		o.StepsPerSecond >= slowest && o.StepsPerSecond <= fastest
}

// Bounds of what is believed: beyond them numbers stop being exact.
const (
	mostWorkers      = 1 << 20
	slowest, fastest = 1e-7, 1e7
)

const (
	// noise is how far, relative to the truth, a second's worth of steps is off.
	noise = 0.05
	// enough are the seconds beyond which an observation weighs no more: what is left then is that the model is a model.
	enough = 60.0
	// halfLife is the age at which an observation weighs half of what it did.
	halfLife = 5 * time.Minute
	// oldest is the age beyond which nothing is older: weights stay numbers with which one can reckon.
	oldest = 24 * time.Hour
	// outlier is from how many times the noise on an observation is held for wrong in part.
	outlier = 2.5
)

// terms is how many terms there are.
const terms = 6

// What is expected of a job of which nothing is known, in parts of the time that one worker computes: of each term the
// most likely value, and how far it may well be off. A few seconds of steps outweigh it where they say otherwise. Rings
// exchange nearly as much per worker however many there are, so the bandwidth terms are small.
var (
	expected = [terms]float64{0.01, 1, 0.01, 0.0001, 0.01, 0.0001}
	doubt    = [terms]float64{0.1, 1, 0.1, 0.001, 0.1, 0.001}
)

// Model says how fast a job is. The zero value knows nothing.
type Model struct {
	terms [terms]float64
	least int
}

// features are how often each term counts.
func features(workers, nodes int) [terms]float64 {
	n := float64(workers)
	x := [terms]float64{1, 1 / n}
	if workers > 1 {
		x[2], x[3] = 1, n-2
	}
	if nodes > 1 {
		x[4], x[5] = 1, n-2
	}
	return x
}

// Known says whether anything is known.
func (m *Model) Known() bool { return m.least > 0 }

// Alone is what a step takes without others to agree with, in seconds: what more workers do not shorten, and what they share.
func (m *Model) Alone() (serial, compute float64) { return m.terms[0], m.terms[1] }

// StepTime is what the terms say, in seconds.
func (m *Model) StepTime(workers, nodes int) float64 {
	// As product of features and terms, without those that do not count: plans ask this a hundred thousand times.
	n, t := float64(workers), &m.terms
	sum := t[0] + 1/n*t[1]
	if workers > 1 {
		sum += t[2]
		sum += (n - 2) * t[3]
	}
	if nodes > 1 {
		sum += t[4]
		sum += (n - 2) * t[5]
	}
	return sum
}

// Speed is in steps per second, 0 where nothing is known. More workers on as many nodes are never slower: who gains
// nothing from some of them is as fast as without them. Workers are at least the job's own least number, nodes at least 1
// and at most the workers.
func (m *Model) Speed(workers, nodes int) float64 {
	if !m.Known() {
		return 0
	}
	bandwidth := m.bandwidth(nodes)
	from := max(m.least, nodes)
	least := min(m.StepTime(from, nodes), m.StepTime(workers, nodes))
	if n := float64(workers); n*n*bandwidth > m.terms[1] {
		turn := m.Turn(nodes)
		least = min(least, m.StepTime(min(max(turn, from), workers), nodes), m.StepTime(min(max(turn+1, from), workers), nodes))
	}
	return 1 / least
}

// bandwidth is by how much each worker makes a step longer. The time is convex from two workers on, with its least where compute/n falls
// as fast as that rises.
func (m *Model) bandwidth(nodes int) float64 {
	if nodes > 1 {
		return m.terms[3] + m.terms[5]
	}
	return m.terms[3]
}

// Turn is up to how many workers a step takes no longer with each that is added on so many nodes, rounded down.
func (m *Model) Turn(nodes int) int {
	bandwidth := m.bandwidth(nodes)
	if m.terms[1] >= bandwidth*mostWorkers*mostWorkers {
		return mostWorkers
	}
	return max(2, int(math.Sqrt(m.terms[1]/bandwidth)))
}

func product(a, b [terms]float64) float64 {
	sum := 0.0
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}
