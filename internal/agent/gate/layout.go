package gate

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Magic is the first word of every gate page.
const Magic uint64 = 0x434e4352544e4131

// LayoutVersion is the second word: the version of the layout. Words that were added at the end of a line since
// it began are 0 on the page of a program that does not know them.
const LayoutVersion uint64 = 2

// MaxSlots is the largest number of slots of a page.
const MaxSlots = 64

// maxWord is the largest value of a word that is a count. Anything above was not written by an SDK.
const maxWord = 1 << 62

const (
	wordBytes    = 8
	wordsPerLine = 8
)

// Words of line 0, which the agent writes once.
const (
	wordMagic = iota
	wordVersion
	wordSlots
)

// Words of a slot's first line, which the agent writes.
const (
	wordStop = iota
	wordTerm
	wordRound
)

// Words of a slot's second line, which the program writes.
const (
	wordEntered = iota
	wordDone
	wordLastStep
	wordPhase
	wordSamples
	wordEnded
	wordBegun
	wordWorked
)

// Phase is what a training process is busy with.
type Phase uint64

// The phases, in the numbers of the page.
const (
	PhaseNone Phase = iota
	PhaseForming
	PhaseData
	PhaseStep
	PhaseEval
	PhaseSaving
	PhaseFinished
)

// Progress is what a training process says of itself.
type Progress struct {
	// Entered and Done are the last step that was begun and the last that was done; steps count
	// from 1.
	Entered, Done uint64
	// LastStep is the last step of the whole training; 0 while unknown.
	LastStep uint64
	// Phase is what the process is busy with.
	Phase Phase
	// Samples is the number of samples of the whole world in the steps 1 to Done.
	Samples uint64
}

// sane returns p without what makes no sense, so that no program can make the agent send a report
// that the operator refuses: counts out of range become 0, Done is at most Entered, and LastStep is
// unknown when a step beyond it was begun.
func (p Progress) sane() Progress {
	for _, word := range []*uint64{&p.Entered, &p.Done, &p.LastStep, &p.Samples} {
		if *word > maxWord {
			*word = 0
		}
	}
	p.Done = min(p.Done, p.Entered)
	if p.LastStep < p.Entered {
		p.LastStep = 0
	}
	if p.Phase > PhaseFinished {
		p.Phase = PhaseNone
	}
	return p
}

// words is the mapped page.
type words []byte

func (w words) at(line, word int) *uint64 {
	return (*uint64)(unsafe.Pointer(&w[(line*wordsPerLine+word)*wordBytes]))
}

func (w words) load(line, word int) uint64         { return atomic.LoadUint64(w.at(line, word)) }
func (w words) store(line, word int, value uint64) { atomic.StoreUint64(w.at(line, word), value) }

// announce stores a word that must be seen by the other side before this one reads the other's. It
// swaps, because the race detector's plain store is not sequentially consistent.
func (w words) announce(line, word int, value uint64) { atomic.SwapUint64(w.at(line, word), value) }

// rewind writes that the program has the state after step k, and has begun none in its world.
func (w words) rewind(line int, k uint64) {
	w.store(line, wordBegun, 0)
	w.store(line, wordDone, k)
	w.store(line, wordEntered, k)
}

func agentLine(slot int) int   { return 1 + 2*slot }
func programLine(slot int) int { return 2 + 2*slot }

// size is the number of bytes that a page with so many slots needs.
func size(slots int) int { return (1 + 2*slots) * wordsPerLine * wordBytes }

func checkSlots(slots int) error {
	if slots < 1 || slots > MaxSlots {
		return fmt.Errorf("a gate page has 1 to %d slots, not %d", MaxSlots, slots)
	}
	return nil
}
