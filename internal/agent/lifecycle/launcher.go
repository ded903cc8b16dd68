package lifecycle

import "time"

// This file is about a launcher that stays, such as torchrun with this project's rendezvous: for the next world it ends
// the processes that it has started, rests, and starts others when it is given that world.

// launcher is the one program of a worker that starts the processes itself, and speaks to the agent.
type launcher struct {
	// connection is 0 while there is none that speaks to the agent.
	connection uint64
	// rests is true while it has no processes, and waits for a world.
	rests bool
}

// Launched is what a launcher has said.
type Launched struct {
	// Connection tells the connections of all time apart; it is not 0.
	Connection uint64
	What       LauncherWord
}

// LauncherWord is what a launcher says.
type LauncherWord int

// The things that a launcher says. LauncherStopped answers Rest: its processes have ended.
const (
	LauncherConnected LauncherWord = iota
	LauncherStopped
	LauncherDisconnected
)

// Lead gives a launcher the world that it was started in.
type Lead struct {
	Connection uint64
	Start      Start
}

// Relaunch gives a launcher that rests the next world. What is done before the start of a program is done here.
type Relaunch struct {
	Connection uint64
	Start      Start
}

// Rest tells a launcher to end its processes. Launched with LauncherStopped answers.
type Rest struct{ Connection uint64 }

func (Launched) isEvent()  {}
func (Lead) isEffect()     {}
func (Relaunch) isEffect() {}
func (Rest) isEffect()     {}

// launched takes what a launcher says. Nothing of it matters once a signal has ended its worker's time.
func (m *Machine) launched(e Launched) []Effect {
	switch {
	case m.shape.Strategy != Restart:
	case e.What == LauncherConnected && m.stage == running:
		m.launcher = launcher{connection: e.Connection}
		return []Effect{Lead{Connection: e.Connection, Start: *m.in}}
	case e.Connection != m.launcher.connection:
	case e.What == LauncherStopped && m.stage == stopping && m.stoppedForAnother():
		m.launcher.rests, m.killAt = true, time.Time{}
	case e.What == LauncherDisconnected && m.launcher.rests:
		// It can be led no more: the next world gets another, once this one has ended.
		m.stage, m.ended = stopping, false
		return m.dismiss()
	case e.What == LauncherDisconnected:
		m.launcher = launcher{}
	}
	return nil
}

// stopsForNext is true for a launcher that only has to end its processes: another world is to follow.
func (m *Machine) stopsForNext() bool {
	return m.launcher.connection != 0 && m.stoppedForAnother() && m.code == 0 && !m.Terminating()
}

// dismiss ends a launcher that rests: it waits for a world that it will not get.
func (m *Machine) dismiss() []Effect {
	rests := m.launcher.rests
	m.launcher = launcher{}
	if rests {
		return []Effect{Kill{}}
	}
	return nil
}
