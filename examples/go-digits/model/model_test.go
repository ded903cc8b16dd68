package model

import (
	"math"
	"testing"

	"github.com/concertina-dev/concertina/examples/go-digits/digits"
	"github.com/concertina-dev/concertina/pkg/elastic/samples"
)

func load(t *testing.T) []digits.Image {
	t.Helper()
	images, _, err := digits.Load()
	if err != nil {
		t.Fatal(err)
	}
	return images
}

func TestGradientIsTheSlopeOfTheLoss(t *testing.T) {
	image := load(t)[0]
	net := New(3)
	gradient := make([]float64, Parameters)
	net.AddGradient(&image, 1, gradient)
	const h = 1e-6
	scratch := make([]float64, Parameters)
	for i := 0; i < Parameters; i += 17 {
		old := net.Weights[i]
		net.Weights[i] = old + h
		above := net.AddGradient(&image, 0, scratch)
		net.Weights[i] = old - h
		below := net.AddGradient(&image, 0, scratch)
		net.Weights[i] = old
		if slope := (above - below) / (2 * h); math.Abs(slope-gradient[i]) > 1e-6 {
			t.Errorf("parameter %d: the gradient is %v and the slope %v", i, gradient[i], slope)
		}
	}
}

// The mean gradient of a batch does not depend on how many ranks share it, and in which pieces.
func TestGradientsAreExactForAnyWorld(t *testing.T) {
	images := load(t)
	net := New(1)
	shape := samples.Shape{Samples: uint64(len(images)), GlobalBatch: 100, Epochs: 1, Seed: 5}
	batch := shape.Batch(shape.Steps()) // the last of the epoch: 38 samples
	order := samples.NewPermutation(shape.Seed, 0, shape.Samples)
	mean := func(ranks, micro int) []float64 {
		sum := make([]float64, Parameters)
		for rank := range ranks {
			for i := range batch.MicroBatches(ranks, micro) {
				part := batch.MicroBatch(rank, ranks, micro, i)
				for j := range part.Samples {
					image := &images[order.At(part.First+uint64(j))]
					net.AddGradient(image, part.Weight/float64(part.Samples), sum)
				}
			}
		}
		for i := range sum {
			sum[i] /= float64(ranks)
		}
		return sum
	}
	want := mean(1, 0)
	for _, ranks := range []int{1, 2, 3, 7, 38, 50} {
		for _, micro := range []int{0, 1, 5} {
			for i, g := range mean(ranks, micro) {
				if math.Abs(g-want[i]) > 1e-12 {
					t.Fatalf("%d ranks, micro-batch %d: parameter %d has the gradient %v, want %v", ranks, micro, i, g, want[i])
				}
			}
		}
	}
}
