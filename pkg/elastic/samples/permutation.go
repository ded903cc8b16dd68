package samples

import "math/bits"

const golden = 0x9E3779B97F4A7C15

const feistelRounds = 6

// Permutation is a bijection of [0, N): position i of an epoch holds sample At(i). It needs no
// table, and constant time in the mean: a Feistel network on an even number of bits, walked until
// it lands below N. The domain has fewer than 4·N values, so that takes fewer than 4 walks in the
// mean.
type Permutation struct {
	n    uint64
	half uint
	keys [feistelRounds]uint64
}

// NewPermutation is the order of the samples in an epoch (from 0), for a data set of n samples,
// 1 to MaxSamples. It panics when n is out of range: Shape.Check says so before.
func NewPermutation(seed, epoch, n uint64) Permutation {
	if n < 1 || n > MaxSamples {
		panic("samples: the number of samples is out of range")
	}
	p := Permutation{n: n, half: max(1, uint(bits.Len64(n-1)+1)/2)}
	key := mix(mix(seed+golden) + (epoch+1)*golden)
	for i := range p.keys {
		p.keys[i] = mix(key + uint64(i+1)*golden)
	}
	return p
}

// At is the sample at a position, which must be below N.
func (p Permutation) At(position uint64) uint64 {
	x := position
	for {
		x = p.walk(x)
		if x < p.n {
			return x
		}
	}
}

func (p Permutation) walk(x uint64) uint64 {
	mask := uint64(1)<<p.half - 1
	left, right := x>>p.half, x&mask
	for _, key := range p.keys {
		left, right = right, left^(mix(right+key)&mask)
	}
	return left<<p.half | right
}

// mix is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", 2014).
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}
