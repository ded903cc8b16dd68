package wire

import (
	"fmt"
	"math"
	"regexp"
	"unicode/utf8"
)

// Protocol is the version that both sides speak.
const Protocol = 2

// Bounds of what a program may say.
const (
	// MaxLine is the length of the longest message, in bytes, with its newline.
	MaxLine = 64 << 10
	// MaxMetrics is the number of metrics in one message.
	MaxMetrics = 8
	// MaxFault is the length of a fault's message in bytes; of a longer one the end is kept.
	MaxFault = 16 << 10
	// maxCount is the largest number of a step.
	maxCount = 1 << 62
)

// Types of messages.
const (
	TypeHello    = "hello"
	TypeWelcome  = "welcome"
	TypeJoin     = "join"
	TypeWorld    = "world"
	TypeGo       = "go"
	TypeParked   = "parked"
	TypeSave     = "save"
	TypeSnapshot = "snapshot"
	TypeAbort    = "abort"
	TypeAborted  = "aborted"
	TypeFault    = "fault"
	TypeRaise    = "raise"
	TypeFinished = "finished"
	TypeEnd      = "end"
	TypeProgress = "progress"
	TypeError    = "error"
)

// Hello claims the slot of a local rank.
type Hello struct {
	Type      string `json:"type"`
	Protocol  int    `json:"protocol"`
	LocalRank int    `json:"localRank"`
}

// Welcome answers Hello; the gate page comes with it.
type Welcome struct {
	Type      string `json:"type"`
	Protocol  int    `json:"protocol"`
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Attempt   int    `json:"attempt"`
	Slot      int    `json:"slot"`
	Slots     int    `json:"slots"`
	// Snapshots is the folder for snapshots; empty when none are taken. Interval says how often to
	// take one: "auto", or seconds as a decimal number.
	Snapshots string `json:"snapshots"`
	Interval  string `json:"interval"`
	FDs       int    `json:"fds"`
}

// Join says that the process is ready for a world and is in none.
type Join struct {
	Type string `json:"type"`
}

// World is the next world. For rank 0 the listening socket of the master port may come with it.
type World struct {
	Type          string `json:"type"`
	Term          uint64 `json:"term"`
	Round         uint64 `json:"round"`
	Parent        uint64 `json:"parent"`
	FromStep      uint64 `json:"fromStep"`
	Rank          int    `json:"rank"`
	Size          int    `json:"size"`
	LocalRank     int    `json:"localRank"`
	LocalSize     int    `json:"localSize"`
	WorkerRank    int    `json:"workerRank"`
	Workers       int    `json:"workers"`
	MasterAddress string `json:"masterAddress"`
	MasterPort    int    `json:"masterPort"`
	// Restore is false for a process that goes on with the state it has. Otherwise it loads the file
	// Snapshot, or begins anew when that is empty.
	Restore  bool   `json:"restore"`
	Snapshot string `json:"snapshot,omitempty"`
	// Writer is true for the process of this node that writes snapshots.
	Writer bool `json:"writer"`
	FDs    int  `json:"fds,omitempty"`
}

// Go asks a process that is parked to look at the gate again.
type Go struct {
	Type string `json:"type"`
}

// Parked says that the process stands at the barrier with Step steps done.
type Parked struct {
	Type string `json:"type"`
	Step uint64 `json:"step"`
}

// Save asks a process that is parked, or has left its world with that state, for a snapshot of Step.
type Save struct {
	Type string `json:"type"`
	Step uint64 `json:"step"`
}

// Snapshot says that the state after Step is written to File, a name in the folder of Welcome, with
// so many Bytes; or, in Error, why it could not be.
type Snapshot struct {
	Type  string `json:"type"`
	Step  uint64 `json:"step"`
	File  string `json:"file,omitempty"`
	Bytes uint64 `json:"bytes,omitempty"`
	Error string `json:"error,omitempty"`
}

// Abort asks the process to leave the world of Round at once.
type Abort struct {
	Type   string `json:"type"`
	Round  uint64 `json:"round"`
	Reason string `json:"reason"`
}

// Aborted says that the process has left its world, with Step steps done, and wants the next. Clean says that
// its state is exactly the one after Step.
type Aborted struct {
	Type  string `json:"type"`
	Step  uint64 `json:"step"`
	Clean bool   `json:"clean"`
}

// Raise lets the exception that was reported as a fault end the program.
type Raise struct {
	Type string `json:"type"`
}

// End says that every process has finished.
type End struct {
	Type string `json:"type"`
}

// Progress brings numbers to show.
type Progress struct {
	Type       string             `json:"type"`
	TotalSteps uint64             `json:"totalSteps,omitempty"`
	Metrics    map[string]float64 `json:"metrics,omitempty"`
}

// Fault is an exception that has ended the training function, with Step steps done; Clean as in Aborted.
type Fault struct {
	Type    string `json:"type"`
	Step    uint64 `json:"step"`
	Clean   bool   `json:"clean"`
	Message string `json:"message"`
}

// Finished says that training is over, with Step steps done; Clean as in Aborted.
type Finished struct {
	Type  string `json:"type"`
	Step  uint64 `json:"step"`
	Clean bool   `json:"clean"`
}

// Error says what was wrong; the connection ends with it.
type Error struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// Unknown is a message of the agent that this side does not know: it is ignored.
type Unknown struct {
	Type string `json:"type"`
}

var metricName = regexp.MustCompile(`^[A-Za-z0-9_]{1,32}$`)

// CheckMetric says what is wrong with a metric; nil when nothing is.
func CheckMetric(name string, value float64) error {
	if !metricName.MatchString(name) {
		return fmt.Errorf("metric %.40q: a name has 1 to 32 letters, digits or _", name)
	}
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return fmt.Errorf("metric %s is %v: only finite numbers can be reported", name, value)
	}
	return nil
}

// TailOf returns the end of text, at most so many bytes, as valid UTF-8.
func TailOf(text string, most int) string {
	if len(text) > most {
		text = text[len(text)-most:]
		for len(text) > 0 && !utf8.RuneStart(text[0]) {
			text = text[1:]
		}
	}
	return text
}

// HeadOf returns the beginning of text, at most so many bytes, as valid UTF-8.
func HeadOf(text string, most int) string {
	if len(text) > most {
		for most > 0 && !utf8.RuneStart(text[most]) {
			most--
		}
		text = text[:most]
	}
	return text
}
