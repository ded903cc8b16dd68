package replay

import (
	"cmp"
	"fmt"
	"slices"
)

// Passes are the times of one pass, in seconds: all of it, and the part in which gradients are exchanged.
type Passes struct {
	All, Exchange float64
}

// MeasuredAt is where a pass was measured, exactly.
type MeasuredAt struct {
	// Placement is in canonical rotation, one digit a node.
	Placement string
	Local     int
}

// InterpolatedAt is where the time of a pass was made from others, for more nodes than were measured.
type InterpolatedAt struct {
	Nodes, Workers, Local int
}

// The reach of the tables of a Profile.
const (
	measuredNodes     = 4
	interpolatedNodes = 16
	measuredPerNode   = 4
	profiledWorkers   = 64
)

// Profile is a kind of program that was measured.
type Profile struct {
	Name string
	Limits
	// Cap is the most workers of a job, beside what follows from its batch.
	Cap int
	// Epochs is how many epochs a job has.
	Epochs int
	// Measured and Interpolated have the times of passes.
	Measured     map[MeasuredAt]Passes
	Interpolated map[InterpolatedAt]Passes
	// Progress is what has been reached when so many epochs are over, from 0: one entry more than Epochs.
	Progress []float64
	// Gains are the progress of a step, Steps the optimizer steps from the beginning to the end of an epoch: both by
	// batch and epoch.
	Gains, Steps map[int][]float64
}

// Training is a job's program: a profile and a batch, which stays the same.
type Training struct {
	profile *Profile
	batch   int
	most    int
}

// Training is a program of this kind with a batch. It fails when the tables lack anything that a run may ask for.
func (p *Profile) Training(batch int) (*Training, error) {
	t := &Training{profile: p, batch: batch, most: min(p.Cap, profiledWorkers, batch/p.MinLocal)}
	if t.most < 1 || batch > p.MaxBatch {
		return nil, fmt.Errorf("%s: a batch of %d is not from %d to %d", p.Name, batch, p.MinLocal, p.MaxBatch)
	}
	if len(p.Steps[batch]) != p.Epochs {
		return nil, fmt.Errorf("%s: the steps of a batch of %d are known for %d epochs of %d", p.Name, batch, len(p.Steps[batch]), p.Epochs)
	}
	for n := 1; n <= t.most; n++ {
		split := p.Split(batch, n)
		if total := split.Batch(n); len(p.Gains[total]) != p.Epochs {
			return nil, fmt.Errorf("%s: the gain of a batch of %d (%d workers) is known for %d epochs of %d", p.Name, total, n, len(p.Gains[total]), p.Epochs)
		}
		if err := p.complete(n, split.Local, nil); err != nil {
			return nil, err
		}
		for nodes := measuredNodes + 1; nodes <= min(interpolatedNodes, n); nodes++ {
			at := InterpolatedAt{Nodes: nodes, Workers: n, Local: split.Local}
			if _, known := p.Interpolated[at]; !known && n <= measuredPerNode*nodes {
				return nil, fmt.Errorf("%s: no time of a pass of %d samples with %d workers on %d nodes", p.Name, at.Local, n, nodes)
			}
		}
	}
	return t, nil
}

// complete checks that each placement of n further workers after those has a time.
func (p *Profile) complete(n, local int, before Placement) error {
	if n == 0 {
		at := MeasuredAt{Placement: canonical(before), Local: local}
		if _, known := p.Measured[at]; !known {
			return fmt.Errorf("%s: no time of a pass of %d samples on nodes %s", p.Name, local, at.Placement)
		}
		return nil
	}
	if len(before) == measuredNodes {
		return nil
	}
	for here := 1; here <= min(n, measuredPerNode); here++ {
		if err := p.complete(n-here, local, append(before, here)); err != nil {
			return err
		}
	}
	return nil
}

// canonical is the smallest of a placement's rotations: the order of nodes in a ring has no beginning.
func canonical(p Placement) string {
	digits := make([]byte, 0, 2*len(p))
	for _, n := range slices.Concat(p, p) {
		digits = append(digits, byte('0'+n))
	}
	least := string(digits[:len(p)])
	for i := 1; i < len(p); i++ {
		if turned := string(digits[i : i+len(p)]); cmp.Less(turned, least) {
			least = turned
		}
	}
	return least
}

// Max is the most workers.
func (t *Training) Max() int { return t.most }

// MaxOnNode is what was measured.
func (t *Training) MaxOnNode() int { return measuredPerNode }

// Epochs is how many epochs there are.
func (t *Training) Epochs() int { return t.profile.Epochs }

// Until is the progress at the end of an epoch.
func (t *Training) Until(epoch int) float64 { return t.profile.Progress[epoch+1] }

// StepTime is the time of all passes: gradients are exchanged in the last one only.
func (t *Training) StepTime(p Placement) float64 {
	split := t.profile.Split(t.batch, p.Workers())
	var pass Passes
	if len(p) <= measuredNodes {
		pass = t.profile.Measured[MeasuredAt{Placement: canonical(p), Local: split.Local}]
	} else {
		pass = t.profile.Interpolated[InterpolatedAt{Nodes: min(len(p), interpolatedNodes), Workers: p.Workers(), Local: split.Local}]
	}
	// The conversion keeps a compiler from fusing the two operations, which would round once instead of twice.
	return pass.All + float64((pass.All-pass.Exchange)*float64(split.Accumulated))
}

// Gain is that of the batch that results.
func (t *Training) Gain(workers, epoch int) float64 {
	return t.profile.Gains[t.profile.Split(t.batch, workers).Batch(workers)][epoch]
}

// Left counts the epoch that is under way as if it were over, as Optimus is given it in the published simulator.
func (t *Training) Left(epoch int, _ float64) float64 {
	steps, last := t.profile.Steps[t.batch], t.profile.Epochs-1
	if epoch >= last {
		return 1
	}
	return steps[last] - steps[epoch]
}

// Total is how many steps it takes with the batch that was asked for.
func (t *Training) Total() float64 { return t.profile.Steps[t.batch][t.profile.Epochs-1] }
