package gate_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/agent/gate"
)

func newPage(t *testing.T, slots int) *gate.Page {
	t.Helper()
	page, err := gate.New(slots)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = page.Close() })
	return page
}

// raw maps the page as a program does that knows nothing but docs/program-protocol.md.
func raw(t *testing.T, page *gate.Page) []byte {
	t.Helper()
	info, err := page.File().Stat()
	if err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(int(page.File().Fd()), 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

func word(mem []byte, line, index int) uint64 {
	return binary.NativeEndian.Uint64(mem[line*64+index*8:])
}

func setWord(mem []byte, line, index int, value uint64) {
	binary.NativeEndian.PutUint64(mem[line*64+index*8:], value)
}

func TestLayoutOfThePage(t *testing.T) {
	page := newPage(t, 3)
	mem := raw(t, page)
	if word(mem, 0, 0) != 0x434e4352544e4131 || word(mem, 0, 1) != 2 || word(mem, 0, 2) != 3 {
		t.Errorf("line 0 holds %x %d %d", word(mem, 0, 0), word(mem, 0, 1), word(mem, 0, 2))
	}
	page.SetWorld(1, 7, 9)
	page.Arm(1, 5)
	if word(mem, 3, 0) != 5 || word(mem, 3, 1) != 7 || word(mem, 3, 2) != 9 {
		t.Errorf("line 3 holds stop %d, term %d, round %d", word(mem, 3, 0), word(mem, 3, 1), word(mem, 3, 2))
	}
	page.Interrupt(1)
	if word(mem, 3, 0) != 1 {
		t.Errorf("stop is %d after an interruption", word(mem, 3, 0))
	}
	page.Lift(1)
	if word(mem, 3, 0) != 0 {
		t.Errorf("stop is %d after it was lifted", word(mem, 3, 0))
	}
	for i, value := range []uint64{12, 11, 900, 3, 1408} {
		setWord(mem, 6, i, value)
	}
	want := gate.Progress{Entered: 12, Done: 11, LastStep: 900, Phase: gate.PhaseStep, Samples: 1408}
	if diff := cmp.Diff(want, page.Progress(2)); diff != "" {
		t.Errorf("slot 2 (-want +got):\n%s", diff)
	}
	page.Clear(2)
	if got := page.Progress(2); got != (gate.Progress{}) {
		t.Errorf("a cleared slot holds %+v", got)
	}
}

func TestSlotWritesWhatThePageReads(t *testing.T) {
	page := newPage(t, 2)
	slot, err := gate.Open(page.File(), 1)
	if err != nil {
		t.Fatal(err)
	}
	slot.SetLastStep(40)
	slot.Enter(5)
	slot.Done(5, 640)
	slot.SetPhase(gate.PhaseData)
	want := gate.Progress{Entered: 5, Done: 5, LastStep: 40, Phase: gate.PhaseData, Samples: 640}
	if diff := cmp.Diff(want, page.Progress(1)); diff != "" {
		t.Errorf("slot 1 (-want +got):\n%s", diff)
	}
	if got := page.Progress(0); got != (gate.Progress{}) {
		t.Errorf("slot 0 was written too: %+v", got)
	}
}

func TestThePageCannotBeTakenAway(t *testing.T) {
	page := newPage(t, 1)
	info, err := page.File().Stat()
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{0, info.Size() - 1, info.Size() + 4096} {
		if err := page.File().Truncate(size); err == nil {
			t.Errorf("the page of %d bytes could be truncated to %d", info.Size(), size)
		}
	}
	if _, err := unix.FcntlInt(page.File().Fd(), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err == nil {
		t.Error("another seal could be added")
	}
	seals, err := unix.FcntlInt(page.File().Fd(), unix.F_GET_SEALS, 0)
	if want := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL; err != nil || seals&want != want {
		t.Errorf("seals %#x, %v; want at least %#x", seals, err, want)
	}
	page.Progress(0)
}

func TestWordsThatMakeNoSense(t *testing.T) {
	page := newPage(t, 1)
	mem := raw(t, page)
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.OneOf(rapid.Uint64Range(0, 10), rapid.Uint64())
		for i := range 5 {
			setWord(mem, 2, i, count.Draw(t, "word"))
		}
		got := page.Progress(0)
		if got.Done > got.Entered || got.Phase > gate.PhaseFinished ||
			(got.LastStep != 0 && got.LastStep < got.Entered) || got.Samples > 1<<62 || got.Entered > 1<<62 {
			t.Fatalf("reported %+v", got)
		}
	})
}

func TestAClosedPageReadsAsZero(t *testing.T) {
	page := newPage(t, 1)
	page.SetWorld(0, 1, 1)
	if err := page.Close(); err != nil {
		t.Fatal(err)
	}
	page.SetWorld(0, 2, 2)
	page.Arm(0, 5)
	page.Lift(0)
	page.Interrupt(0)
	page.Rewind(0, 3)
	page.Clear(0)
	if got := page.Progress(0); got != (gate.Progress{}) {
		t.Errorf("a closed page holds %+v", got)
	}
	if err := page.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
}

func TestPagesThatAreRefused(t *testing.T) {
	if _, err := gate.New(0); err == nil {
		t.Error("a page with no slots was made")
	}
	if _, err := gate.New(gate.MaxSlots + 1); err == nil {
		t.Error("a page with too many slots was made")
	}
	page := newPage(t, 2)
	for _, slot := range []int{-1, 2, gate.MaxSlots} {
		if _, err := gate.Open(page.File(), slot); err == nil {
			t.Errorf("slot %d of 2 was opened", slot)
		}
	}
	for name, content := range map[string][]byte{
		"empty":         {},
		"not a page":    make([]byte, 4096),
		"other version": append(binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, gate.Magic), 1), make([]byte, 4096)...),
		"too short":     binary.NativeEndian.AppendUint64(nil, gate.Magic),
	} {
		path := filepath.Join(t.TempDir(), "page")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := gate.Open(file, 0); err == nil {
			t.Errorf("%s: opened", name)
		}
		_ = file.Close()
	}
}

// monotonic is CLOCK_MONOTONIC, as a program reads it that knows nothing but docs/program-protocol.md.
func monotonic(t *testing.T) uint64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return uint64(now.Nano())
}

func TestStampsOfThePage(t *testing.T) {
	page := newPage(t, 2)
	mem := raw(t, page)
	setWord(mem, 4, 5, 1700)
	setWord(mem, 4, 6, 1800)
	setWord(mem, 4, 7, 900)
	if got := page.Stamps(1); got != (gate.Stamps{Ended: 1700, Begun: 1800, Worked: 900}) {
		t.Errorf("slot 1 has %+v", got)
	}
	// Another world begins: what ended before it stays known.
	page.Rewind(1, 3)
	if got := page.Stamps(1); got != (gate.Stamps{Ended: 1700, Worked: 900}) {
		t.Errorf("a slot in another world has %+v", got)
	}
	setWord(mem, 4, 5, 1<<63)
	setWord(mem, 4, 6, 1<<62+1)
	setWord(mem, 4, 7, 1<<62+1)
	if got := page.Stamps(1); got != (gate.Stamps{}) {
		t.Errorf("nonsense is taken for %+v", got)
	}
	setWord(mem, 4, 5, 1)
	page.Clear(1)
	if got := page.Stamps(1); got != (gate.Stamps{}) {
		t.Errorf("a cleared slot has %+v", got)
	}
}

// The first step of a world is stamped when it begins, and every step when it ends.
func TestSlotStampsItsSteps(t *testing.T) {
	page := newPage(t, 1)
	slot, err := gate.Open(page.File(), 0)
	if err != nil {
		t.Fatal(err)
	}
	slot.Rewind(0, 0)
	before := monotonic(t)
	slot.Enter(1)
	first := page.Stamps(0)
	// Two clocks are compared when a slot is opened, one read after the other.
	const apart = uint64(time.Second)
	if first.Begun+apart < before || first.Begun > monotonic(t)+apart || first.Ended != 0 {
		t.Errorf("after the first step has begun: %+v, not before %d", first, before)
	}
	slot.Done(1, 10)
	slot.Enter(2)
	second := page.Stamps(0)
	if second.Begun != first.Begun || second.Ended < first.Begun || second.Ended > monotonic(t)+apart {
		t.Errorf("after the second step has begun: %+v, before it %+v", second, first)
	}
	slot.Done(2, 20)
	last := page.Stamps(0).Ended
	if last < second.Ended {
		t.Errorf("the second step has ended at %d, the first at %d", last, second.Ended)
	}

	// It stops at the barrier, and the next world begins there.
	page.Arm(0, 2)
	slot.Enter(3)
	page.Lift(0)
	page.Rewind(0, 2)
	slot.Rewind(2, 20)
	page.Arm(0, 2)
	if slot.Enter(3); page.Stamps(0) != (gate.Stamps{Ended: last}) {
		t.Errorf("a step that must not be made has begun: %+v", page.Stamps(0))
	}
	page.Lift(0)
	if slot.Enter(3); page.Stamps(0).Begun < last {
		t.Errorf("the first step of the second world began at %d, after %d", page.Stamps(0).Begun, last)
	}
}
