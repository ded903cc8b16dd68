// Package model is a small neural network that reads handwritten digits: one hidden layer, tanh and
// softmax, trained by gradient descent with momentum.
package model

import (
	"math"
	"math/rand/v2"

	"github.com/concertina-dev/concertina/examples/go-digits/digits"
)

const hidden = 48

// Offsets of the layers in the vector of all parameters.
const (
	weights1 = 0
	bias1    = weights1 + digits.Pixels*hidden
	weights2 = bias1 + hidden
	bias2    = weights2 + hidden*digits.Classes
	// Parameters is the number of parameters.
	Parameters = bias2 + digits.Classes
)

// Net is the network. Its methods are for one goroutine. The exported fields are all that lasts from
// one step to the next.
type Net struct {
	// Weights are the Parameters of the network, Velocity their momentum.
	Weights, Velocity []float64

	// Activations and their gradients, for one image.
	h, dh [hidden]float64
	p     [digits.Classes]float64
}

// New is a network with random weights, the same for the same seed.
func New(seed uint64) *Net {
	random := rand.New(rand.NewPCG(seed, 0))
	n := &Net{Weights: make([]float64, Parameters), Velocity: make([]float64, Parameters)}
	// Variance 1/inputs keeps the activations of tanh where it is steep.
	fill(random, n.Weights[weights1:bias1], digits.Pixels)
	fill(random, n.Weights[weights2:bias2], hidden)
	return n
}

func fill(random *rand.Rand, weights []float64, inputs int) {
	for i := range weights {
		weights[i] = random.NormFloat64() / math.Sqrt(float64(inputs))
	}
}

// forward computes the probability of each digit.
func (n *Net) forward(image *digits.Image) {
	w1, b1 := n.Weights[weights1:bias1], n.Weights[bias1:weights2]
	w2, b2 := n.Weights[weights2:bias2], n.Weights[bias2:]
	for j := range n.h {
		sum := b1[j]
		for i, x := range image.Pixels {
			sum += w1[j*digits.Pixels+i] * x
		}
		n.h[j] = math.Tanh(sum)
	}
	largest := math.Inf(-1)
	for k := range n.p {
		sum := b2[k]
		for j, h := range n.h {
			sum += w2[k*hidden+j] * h
		}
		n.p[k] = sum
		largest = max(largest, sum)
	}
	total := 0.0
	for k, z := range n.p {
		n.p[k] = math.Exp(z - largest)
		total += n.p[k]
	}
	for k := range n.p {
		n.p[k] /= total
	}
}

// AddGradient adds scale times the gradient of the loss for one image to gradient, which has
// Parameters elements, and returns the loss (cross entropy, in nats).
func (n *Net) AddGradient(image *digits.Image, scale float64, gradient []float64) float64 {
	n.forward(image)
	loss := -math.Log(max(n.p[image.Digit], math.SmallestNonzeroFloat64))
	w2 := n.Weights[weights2:bias2]
	g1, gb1 := gradient[weights1:bias1], gradient[bias1:weights2]
	g2, gb2 := gradient[weights2:bias2], gradient[bias2:Parameters]
	n.dh = [hidden]float64{}
	for k, p := range n.p {
		d := p
		if k == image.Digit {
			d--
		}
		d *= scale
		gb2[k] += d
		for j, h := range n.h {
			g2[k*hidden+j] += d * h
			n.dh[j] += d * w2[k*hidden+j]
		}
	}
	for j, h := range n.h {
		d := n.dh[j] * (1 - h*h)
		gb1[j] += d
		for i, x := range image.Pixels {
			g1[j*digits.Pixels+i] += d * x
		}
	}
	return loss
}

// Update takes one step against the gradient.
func (n *Net) Update(gradient []float64, rate, momentum float64) {
	for i, g := range gradient[:Parameters] {
		n.Velocity[i] = momentum*n.Velocity[i] - rate*g
		n.Weights[i] += n.Velocity[i]
	}
}

// Accuracy is the part of the images, 0 to 1, that the network reads correctly.
func (n *Net) Accuracy(images []digits.Image) float64 {
	correct := 0
	for i := range images {
		n.forward(&images[i])
		best := 0
		for k, p := range n.p {
			if p > n.p[best] {
				best = k
			}
		}
		if best == images[i].Digit {
			correct++
		}
	}
	return float64(correct) / float64(len(images))
}
