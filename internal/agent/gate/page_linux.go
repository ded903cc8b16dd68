package gate

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Page is the agent's side of a gate page. Its methods may be called at any time from any
// goroutine; after Close they read zeros and write nothing.
type Page struct {
	slots int
	file  *os.File

	mu  sync.Mutex
	mem words
	// armed is the step that each slot was told to stop after; 0 for none.
	armed []uint64
	// fence orders the words of programs that cannot do so themselves.
	fence func()
}

// New makes a page with so many slots, 1 to MaxSlots, all zero. The page cannot be made shorter by
// whoever gets its file: reading it never fails.
func New(slots int) (*Page, error) {
	if err := checkSlots(slots); err != nil {
		return nil, err
	}
	file, err := memoryFile("concertina-gate")
	if err != nil {
		return nil, fmt.Errorf("make the memory of the gate page: %w", err)
	}
	mem, err := sealAndMap(file, size(slots))
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	p := &Page{slots: slots, file: file, mem: mem, armed: make([]uint64, slots), fence: fenceAll}
	p.mem.store(0, wordVersion, LayoutVersion)
	p.mem.store(0, wordSlots, uint64(slots))
	p.mem.store(0, wordMagic, Magic)
	return p, nil
}

func memoryFile(name string) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		// Kernels before 6.3 do not know MFD_NOEXEC_SEAL; some later ones insist on it.
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func sealAndMap(file *os.File, size int) (words, error) {
	if err := file.Truncate(int64(size)); err != nil {
		return nil, fmt.Errorf("size the gate page: %w", err)
	}
	fd := int(file.Fd())
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal the gate page: %w", err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the gate page: %w", err)
	}
	return mem, nil
}

// Slots is the number of slots.
func (p *Page) Slots() int { return p.slots }

// File is the memory itself, to be handed to a training process. It belongs to the page.
func (p *Page) File() *os.File { return p.file }

// SetWorld tells a slot which term and round it is in. The slot must exist.
func (p *Page) SetWorld(slot int, term, round uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mem == nil {
		return
	}
	p.mem.store(agentLine(slot), wordTerm, term)
	p.mem.store(agentLine(slot), wordRound, round)
}

// Arm has a slot's process stop after step n, or after the last step that it has begun when that is
// later, and returns which of the two. From then on no later step is begun before Arm is called
// again with a larger n, or Lift. A smaller n changes nothing.
func (p *Page) Arm(slot int, n uint64) (stop uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mem == nil {
		return 0
	}
	stop = max(n, p.begun(slot), p.armed[slot], 1)
	p.mem.announce(agentLine(slot), wordStop, stop)
	if p.armed[slot] == 0 {
		p.fence()
		// A step that was begun meanwhile may have slipped through. The one after it cannot: its
		// look at stop comes after its own word, which was not there yet when this read.
		if entered := p.mem.load(programLine(slot), wordEntered); entered > stop && entered <= maxWord {
			stop = entered
			p.mem.announce(agentLine(slot), wordStop, stop)
		}
	}
	p.armed[slot] = stop
	return stop
}

// begun is the last step that a slot's process has begun. The step that it says to enter is not
// begun when it stops before it. The lock is held.
func (p *Page) begun(slot int) uint64 {
	entered := p.mem.load(programLine(slot), wordEntered)
	if entered > maxWord {
		return 0
	}
	if armed := p.armed[slot]; armed > 0 {
		return min(entered, armed)
	}
	return entered
}

// Lift takes the bound of Arm or Interrupt away.
func (p *Page) Lift(slot int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mem == nil {
		return
	}
	p.armed[slot] = 0
	p.mem.store(agentLine(slot), wordStop, 0)
}

// Interrupt has a slot's process stop before the next step that it looks at, whatever its number:
// its world is over.
func (p *Page) Interrupt(slot int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mem == nil {
		return
	}
	p.mem.store(agentLine(slot), wordStop, 1)
}

// Rewind notes that the state after step k is what a slot's process goes on with. The process must
// be waiting for its world.
func (p *Page) Rewind(slot int, k uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mem == nil {
		return
	}
	p.mem.rewind(programLine(slot), k)
}

// Clear forgets what the last owner of a slot wrote, and where it was to stop, before the next one
// gets it.
func (p *Page) Clear(slot int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mem == nil {
		return
	}
	p.armed[slot] = 0
	p.mem.store(agentLine(slot), wordStop, 0)
	for word := range wordsPerLine {
		p.mem.store(programLine(slot), word, 0)
	}
}

// Progress reads what a slot's owner wrote, made sane. A step before which it stops counts as not
// entered.
func (p *Page) Progress(slot int) Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mem == nil {
		return Progress{}
	}
	line := programLine(slot)
	// Done before Entered: the program writes them in the order entered, done, so that a step
	// never looks done before it was begun.
	done := p.mem.load(line, wordDone)
	return Progress{
		Entered:  p.begun(slot),
		Done:     done,
		LastStep: p.mem.load(line, wordLastStep),
		Phase:    Phase(p.mem.load(line, wordPhase)),
		Samples:  p.mem.load(line, wordSamples),
	}.sane()
}

// Close gives the memory back. Processes that have mapped it keep it.
func (p *Page) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mem == nil {
		return nil
	}
	err := errors.Join(unix.Munmap(p.mem), p.file.Close())
	p.mem = nil
	return err
}
