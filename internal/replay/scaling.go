package replay

import "math"

// Scaling is a program of which a few numbers say how its step time depends on its workers: a step takes
//
//	Serial + Parallel/n + (Near if n > 1) + (Far if on more than one node)
//
// seconds. It has one epoch, and its progress is counted in steps.
type Scaling struct {
	Steps int64
	// Serial and Parallel are the seconds of a step that more workers do not shorten, and that they share; Near and
	// Far what it costs to agree with others at all, and with others on other nodes.
	Serial, Parallel, Near, Far float64
	// Most is the most workers.
	Most int
}

// Max is the most workers.
func (s *Scaling) Max() int { return s.Most }

// MaxOnNode has no bound.
func (s *Scaling) MaxOnNode() int { return math.MaxInt }

// Epochs is 1.
func (s *Scaling) Epochs() int { return 1 }

// Until is the number of steps.
func (s *Scaling) Until(int) float64 { return float64(s.Steps) }

// StepTime is the sum above.
func (s *Scaling) StepTime(p Placement) float64 {
	n := p.Workers()
	t := s.Serial + s.Parallel/float64(n)
	if n > 1 {
		t += s.Near
	}
	if len(p) > 1 {
		t += s.Far
	}
	return t
}

// Gain is 1: a step is a step.
func (s *Scaling) Gain(int, int) float64 { return 1 }

// Left is how many steps are left.
func (s *Scaling) Left(_ int, progress float64) float64 { return max(1, float64(s.Steps)-progress) }

// Total is how many steps there are.
func (s *Scaling) Total() float64 { return float64(s.Steps) }
