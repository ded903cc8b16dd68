package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A file in memory whose pages are there is written several times as fast as one whose pages the kernel has yet to find, and
// has to free afterwards. So a program may say that it writes over files that it finds under names that begin with spare-: what
// periodic snapshots push out is left to it as such then, one state at most. It takes one by renaming it. Whatever else needs
// room in the folder removes them first.

// sparePrefix begins the names of files that programs may write over.
const sparePrefix = "spare-"

// spare leaves files, which have no other name any more, to the program that writes next, and returns those that it cannot: somebody
// reads them still. Those of an earlier time go.
func (s *Store) spare(names []string) (rest []string, err error) {
	if err := s.ClearSpares(); err != nil {
		return names, err
	}
	s.sparing.Lock()
	defer s.sparing.Unlock()
	if s.claims > 0 {
		return names, nil
	}
	for i, name := range names {
		to := filepath.Join(s.dir, fmt.Sprintf("%s%d%s", sparePrefix, i, partSuffix))
		if !isUnread(name) || os.Rename(name, to) != nil {
			rest = append(rest, name)
		}
	}
	return rest, nil
}

// Claim makes room for something else: until Release nothing is left to programs.
func (s *Store) Claim() error {
	s.sparing.Lock()
	s.claims++
	s.sparing.Unlock()
	err := s.ClearSpares()
	if err != nil {
		s.Release()
	}
	return err
}

// Release ends a Claim.
func (s *Store) Release() {
	s.sparing.Lock()
	defer s.sparing.Unlock()
	s.claims--
}

// ClearSpares removes what was left to programs, to make room for something else.
func (s *Store) ClearSpares() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("remove spare files: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), sparePrefix) {
			continue
		}
		if err := os.Remove(filepath.Join(s.dir, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove spare files: %w", err))
		}
	}
	return errors.Join(errs...)
}

// isUnread says whether nobody has a file open, or mapped, or will: an agent that fetches it, the uploader, a program that loads it,
// who has pinned it. The kernel knows: it gives a lease for writing to who is alone with a file. Where it knows no leases nobody is ever
// alone.
func isUnread(name string) bool {
	file, err := os.OpenFile(name, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	var stat unix.Stat_t
	_, err = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	return errors.Join(err, unix.Fstat(int(file.Fd()), &stat), file.Close()) == nil && stat.Nlink == 1
}
