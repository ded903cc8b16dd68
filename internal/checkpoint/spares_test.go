package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// spares are the files that are left to the program.
func spares(t *testing.T, s *Store) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(s.Directory())
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), sparePrefix) {
			names = append(names, entry.Name())
		} else if strings.HasSuffix(entry.Name(), partSuffix) {
			t.Errorf("%s is left", entry.Name())
		}
	}
	return names
}

// written has a program write two parts of a state.
func written(t *testing.T, s *Store, step uint64) {
	t.Helper()
	for _, part := range []string{"s0.2.0123456789abcdef", "s1.2.0123456789abcdef"} {
		if err := os.WriteFile(filepath.Join(s.Directory(), "x.part"), []byte(part), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Take(ID{Round: 1, Step: step, Part: part}, "x.part", uint64(len(part))); err != nil {
			t.Fatal(err)
		}
	}
}

func full(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.TempDir(), 2)
	if err != nil {
		t.Fatal(err)
	}
	for step := range uint64(3) {
		written(t, s, step+1)
	}
	return s
}

// What a program pushes out is left to it, of one state, as long as it writes over that.
func TestWhatIsDroppedIsLeftToTheProgram(t *testing.T) {
	s := full(t)
	for step := uint64(4); step < 6; step++ {
		if err := s.Trim(true); err != nil {
			t.Fatal(err)
		}
		if got := spares(t, s); !slices.Equal(got, []string{"spare-0.part", "spare-1.part"}) || len(s.List()) != 4 {
			t.Fatalf("left are %v, held %v", got, s.List())
		}
		written(t, s, step)
	}
	if err := s.Trim(false); err != nil {
		t.Fatal(err)
	}
	if got := spares(t, s); len(got) > 0 {
		t.Errorf("%v are left to a program that writes over nothing", got)
	}
}

// Nobody is to see what is written over a snapshot that it reads: an open file is kept from that, and so is one that is mapped.
func TestWhatSomebodyReadsIsLeftToNobody(t *testing.T) {
	s := full(t)
	file, _, err := s.open(ID{Round: 1, Step: 1, Part: "s0.2.0123456789abcdef"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	other, _, err := s.open(ID{Round: 1, Step: 1, Part: "s1.2.0123456789abcdef"})
	if err != nil {
		t.Fatal(err)
	}
	mapped, err := syscall.Mmap(int(other.Fd()), 0, 4, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Munmap(mapped) }()
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Trim(true); err != nil {
		t.Fatal(err)
	}
	if got := spares(t, s); len(got) > 0 || len(s.List()) != 4 {
		t.Errorf("%v are left, and somebody reads them; held are %v", got, s.List())
	}
	written(t, s, 4)
	if err := s.Trim(true); err != nil {
		t.Fatal(err)
	}
	if got := spares(t, s); len(got) != 2 {
		t.Errorf("left are %v", got)
	}
	if text := make([]byte, 4); string(mapped) != "s1.2" {
		t.Errorf("%q is there", mapped)
	} else if _, err := file.ReadAt(text, 0); err != nil || string(text) != "s0.2" {
		t.Errorf("%q is there (%v)", text, err)
	}
}

// What is pinned is somebody's who will read it: it is left to nobody, and stays what it was.
func TestWhatIsPinnedIsLeftToNobody(t *testing.T) {
	s := full(t)
	path, err := s.Pin(ID{Round: 1, Step: 1, Part: "s0.2.0123456789abcdef"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Trim(true); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(s.Directory(), sparePrefix+"*"))
	if err != nil || len(names) != 1 || len(s.List()) != 4 {
		t.Errorf("left are %v (%v), held %v", names, err, s.List())
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "s0.2.0123456789abcdef" {
		t.Errorf("it is %q by now (%v)", text, err)
	}
	if _, err := s.Pin(ID{Round: 1, Step: 1, Part: "s0.2.0123456789abcdef"}); err == nil {
		t.Error("what is held no more can be pinned")
	}
	// The agent has ended, and nobody is left who would put it.
	if _, err := Open(s.Directory(), 2); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("it stays for ever")
	}
}

// Whatever else needs room takes that of spare files.
func TestSpareFilesMakeRoom(t *testing.T) {
	s := full(t)
	if err := s.Trim(true); err != nil || len(spares(t, s)) == 0 {
		t.Fatal("nothing is left", err)
	}
	if err := s.ClearSpares(); err != nil || len(spares(t, s)) > 0 {
		t.Errorf("they are left (%v)", err)
	}
	if err := s.Trim(true); err != nil {
		t.Fatal(err)
	}
	written(t, s, 4)
	if err := s.Trim(true); err != nil || len(spares(t, s)) == 0 {
		t.Fatal("nothing is left", err)
	}
	g := &gathering{store: s}
	if _, err := g.open(&arrival{Wanted: &Wanted{}}); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(s.Directory(), sparePrefix+"*"))
	if err != nil || len(names) > 0 {
		t.Errorf("what is fetched has to find room beside %v (%v)", names, err)
	}
}

// What is pushed out while something is fetched is left to nobody: the rest of that needs the room.
func TestNothingIsSparedWhileSomethingIsFetched(t *testing.T) {
	s := full(t)
	g := &gathering{store: s}
	a := &arrival{Wanted: &Wanted{}}
	if _, err := g.open(a); err != nil {
		t.Fatal(err)
	}
	g.arrivals = append(g.arrivals, a)
	if err := s.Trim(true); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(s.Directory(), sparePrefix+"*"))
	if err != nil || len(names) > 0 {
		t.Errorf("what is fetched has to find room beside %v (%v)", names, err)
	}
	g.close()
	written(t, s, 4)
	if err := s.Trim(true); err != nil {
		t.Fatal(err)
	}
	if got := spares(t, s); len(got) != 2 {
		t.Errorf("left are %v once nothing is fetched any more", got)
	}
}

// What comes behind the training takes the room of spare files only where there is no other.
func TestSpareFilesStayBesideWhatHasRoom(t *testing.T) {
	s := full(t)
	if err := s.Trim(true); err != nil || len(spares(t, s)) == 0 {
		t.Fatal("nothing is left", err)
	}
	left := func() []string {
		names, err := filepath.Glob(filepath.Join(s.Directory(), sparePrefix+"*"))
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	a := &arrival{Wanted: &Wanted{}}
	g := &gathering{store: s, beside: true, arrivals: []*arrival{a}}
	defer g.close()
	file, err := g.open(a)
	if err == nil {
		err = g.write(file, []byte("block"), 0)
	}
	if err != nil || len(left()) == 0 {
		t.Fatalf("nothing is left though there is room (%v)", err)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = full.Close() }()
	if err := g.write(full, []byte("block"), 0); !errors.Is(err, syscall.ENOSPC) || !g.claimed {
		t.Errorf("without room it says %v, claimed %v", err, g.claimed)
	}
	if names := left(); len(names) > 0 {
		t.Errorf("what is fetched has to find room beside %v", names)
	}
}
