package lifecycle

// A process that is to get the state of its world, and leaves it before anything of that has come, still has what it left a world before
// with. That is worth something as long as it is known to be of the history that the next world goes on with: steps that it has seen may have
// been thrown away while it was away, and made again.

// judgeState settles of which world's history the state is that a process has left its world with. One that is older than the world's is of its
// history if it is of that of the world before. Of any other it is only said where it is of the world that this worker was in before: the
// operator knows whether that counts. It is not said to be the state after a step where nobody would know.
func (m *Machine) judgeState(s *slot) {
	switch {
	case !s.hasLeft() || s.kept: // it was judged in the world before
	case !s.clean:
		s.of = 0
	case s.step >= s.from, s.of != 0 && s.of == s.parent:
		s.of = s.world
	case s.of == 0 || s.of != m.before:
		s.of, s.clean = 0, false
	}
}

// carries is of which round's history the state is that a process takes to its next world.
func (s *slot) carries() uint64 {
	switch {
	case s.waiting == WaitsParked:
		return s.world
	case s.hasLeft() && s.clean:
		return s.of
	}
	return 0
}

// keepsState is true for a process that has left the world before that of this worker with the state that this one begins
// with, or an older one. When this one is over before the process was in it, that state is as good as one left there: it belongs
// to the history of both. An older one may be the newest that is left, when who had a newer is lost. That it had a fault in the world
// before, or had finished, means nothing any more: others have judged that, and made this one. One of the very step counts only where the
// operator goes on with it: where it has this worker get another one, that may be of another history.
func (m *Machine) keepsState(s *slot) bool {
	in := &m.in.World
	fromParent := s.world == in.Parent && (s.step < in.FromStep || s.step == in.FromStep && !in.Restore)
	return (fromParent || m.wasLeftOut(s)) && s.of == s.world && s.keeps(s.step) && !s.raised && !s.ended
}

// wasLeftOut is true for a process that has left the world that this worker was in before this one, which has followed on another one
// without it. The operator knows whether a state of that world counts. One that is as far as this world, or further, may be of a step that
// was made again in between, and nobody could tell it from that by its number.
func (m *Machine) wasLeftOut(s *slot) bool {
	return s.world != 0 && s.world == m.before && s.world != m.in.World.Parent && s.step < m.in.World.FromStep
}
