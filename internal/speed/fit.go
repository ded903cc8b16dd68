package speed

import "math"

// Fit is the model of a job whose least number of workers is given, at least 1. Observations that cannot be true count
// for nothing.
func Fit(seen []Observation, least int) Model {
	var usable []Observation
	for _, o := range seen {
		if o.usable() {
			usable = append(usable, o)
		}
	}
	if len(usable) == 0 {
		return Model{}
	}
	scale := alone(usable)
	m := Model{least: least}
	trust := make([]float64, len(usable))
	for i := range trust {
		trust[i] = 1
	}
	// Again and again, with less trust in what is far from what the others say.
	for range rounds {
		m.terms = solve(usable, trust, scale)
		for i, o := range usable {
			off := math.Abs(m.StepTime(o.Workers, o.Nodes)*o.StepsPerSecond-1) / noise
			trust[i] = outlier / max(off, outlier)
		}
	}
	return m
}

// weight is how many seconds an observation is worth, by how long it was and how long ago.
func weight(o *Observation) float64 {
	seconds := float64(o.Steps) / o.StepsPerSecond
	return min(seconds, enough) * math.Exp2(-float64(min(o.Age, oldest))/float64(halfLife))
}

// alone is the time that one worker would compute, if all else were as expected: the mean of what each observation says,
// by weight.
func alone(seen []Observation) float64 {
	sum, weights := 0.0, 0.0
	for i := range seen {
		o := &seen[i]
		w := weight(o) + math.SmallestNonzeroFloat64
		sum += w * math.Log(1/o.StepsPerSecond/product(features(o.Workers, o.Nodes), expected))
		weights += w
	}
	return math.Exp(sum / weights)
}

// solve finds the terms, none below 0, of which the errors relative to the observations and the distance from what is
// expected are least, in
// squares.
func solve(seen []Observation, trust []float64, scale float64) [terms]float64 {
	// In units of scale × doubt the distance from the expected is that of a unit matrix.
	var matrix [terms][terms]float64
	var right [terms]float64
	for j := range terms {
		matrix[j][j] = 1
		right[j] = expected[j] / doubt[j]
	}
	for i := range seen {
		o := &seen[i]
		x := features(o.Workers, o.Nodes)
		for j := range x {
			x[j] *= scale * doubt[j] * o.StepsPerSecond
		}
		w := weight(o) * trust[i] / (noise * noise)
		for j := range terms {
			right[j] += w * x[j]
			for k := range terms {
				matrix[j][k] += w * x[j] * x[k]
			}
		}
	}
	at := nonNegative(&matrix, &right)
	for j := range terms {
		at[j] *= scale * doubt[j]
	}
	at[1] = max(at[1], scale*leastCompute)
	return at
}

// rounds are enough for trust to settle.
const rounds = 6

// leastCompute is the part of its expected time that a job computes in any case: nothing takes no time at all.
const leastCompute = 1e-6

// nonNegative is where x·matrix·x/2 - right·x is least, with no x below 0. The matrix is positive definite, so the answer
// is the best of those that let some of x be 0 and solve for the others: with six terms these are few enough to try.
func nonNegative(matrix *[terms][terms]float64, right *[terms]float64) [terms]float64 {
	var best [terms]float64
	gain := 0.0
	for free := range 1 << terms {
		x, ok := solveFree(*matrix, *right, free)
		if sum := product(x, *right); ok && sum > gain {
			best, gain = x, sum
		}
	}
	return best
}

// solveFree solves matrix·x = right for those x that are free, one bit each, where the others are 0. It says whether none
// is below 0.
func solveFree(matrix [terms][terms]float64, right [terms]float64, free int) ([terms]float64, bool) {
	var x [terms]float64
	for j := range terms {
		if free&(1<<j) == 0 {
			matrix[j], right[j] = [terms]float64{}, 0
			matrix[j][j] = 1
			for i := range terms {
				if i != j {
					matrix[i][j] = 0
				}
			}
		}
	}
	for j := range terms { // a matrix that is positive definite needs no exchange of lines
		for i := j + 1; i < terms; i++ {
			factor := matrix[i][j] / matrix[j][j]
			for k := j; k < terms; k++ {
				matrix[i][k] -= factor * matrix[j][k]
			}
			right[i] -= factor * right[j]
		}
	}
	for j := terms - 1; j >= 0; j-- {
		x[j] = right[j]
		for k := j + 1; k < terms; k++ {
			x[j] -= matrix[j][k] * x[k]
		}
		if x[j] /= matrix[j][j]; !(x[j] >= 0) {
			return x, false
		}
	}
	return x, true
}
