package wire

import (
	"fmt"
	"math"
	"regexp"
	"unicode/utf8"

	"github.com/concertina-dev/concertina/internal/share"
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
	// MaxParts is the number of parts of a snapshot that one process writes.
	MaxParts = share.Most + 1
	// MaxRanges is the number of ranges of all parts in one message.
	MaxRanges = 1024
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
	TypeLeave    = "leave"
	TypeLeft     = "left"
	TypeStop     = "stop"
	TypeStopped  = "stopped"
	TypeProgress = "progress"
	TypeScore    = "score"
	TypeWant     = "want"
	TypeHad      = "had"
	TypeError    = "error"
)

// Hello claims the slot of a local rank.
type Hello struct {
	Type      string `json:"type"`
	Protocol  int    `json:"protocol"`
	LocalRank int    `json:"localRank"`
	// Leaves says that the process was started in its world and asks for none: at a barrier it can be told to leave.
	Leaves bool `json:"leaves,omitempty"`
	// Launcher says that it trains nothing: it starts the worker's processes, and claims no slot.
	Launcher bool `json:"launcher,omitempty"`
	// Shares is true for a program that can write its state in shares, and read it so.
	Shares bool `json:"shares,omitempty"`
	// Sharded is true for a program of whose state each process has its own shard: all of them write, and read what they need.
	Sharded bool `json:"sharded,omitempty"`
	// Local is true for a program whose workers have the same state, of which each process has the share of its local rank: all
	// processes of a worker that is asked write.
	Local bool `json:"local,omitempty"`
	// Handover is true for a program that can give its state to others over the links of their world, and get it so. All of it is
	// the same on all ranks, or with Local on those of the same local rank, but for what is small or in buffers.
	Handover bool `json:"handover,omitempty"`
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
	// Leaves is true when Hello said so, and this agent knows what it means.
	Leaves bool `json:"leaves,omitempty"`
	// Sharded is true when Hello said so, and this agent knows what it means.
	Sharded bool `json:"sharded,omitempty"`
	// Local is true when Hello said so, and this agent knows what it means.
	Local bool `json:"local,omitempty"`
	// Best is the metric of which the process of rank 0 says with Score what an evaluation has found, and a snapshot is taken of each
	// state that is evaluated; empty where the job keeps no best checkpoints.
	Best string `json:"best,omitempty"`
	FDs  int    `json:"fds"`
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
	// Snapshot, with what is in the files Shares, or begins anew when it is empty.
	Restore bool `json:"restore"`
	// Handover has the processes that have the state give it to those with Restore, over the links of the world; there is no Snapshot.
	Handover bool     `json:"handover,omitempty"`
	Snapshot string   `json:"snapshot,omitempty"`
	Shares   []string `json:"shares,omitempty"`
	// Shards names the shards of the state that there are, by their ranks: a process asks for those that it needs with Want. The
	// process loads them, and Snapshot, also when Restore is false.
	Shards []string `json:"shards,omitempty"`
	// Writer is true for the process of this node that writes snapshots of its whole state. Staging says what a process
	// writes of a state that is large enough to be shared; nil for one that writes nothing of it.
	Writer  bool     `json:"writer"`
	Staging *Staging `json:"staging,omitempty"`
	FDs     int      `json:"fds,omitempty"`
}

// Staging is what one process writes of a snapshot that several make: the shares of these numbers, from 0, of Of.
type Staging struct {
	Of     int   `json:"of"`
	Shares []int `json:"shares"`
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

// Save asks a process that is parked, or has left its world with that state, for a snapshot of Step: of what
// Staging says, or of all when it is nil.
type Save struct {
	Type    string   `json:"type"`
	Step    uint64   `json:"step"`
	Staging *Staging `json:"staging,omitempty"`
}

// Snapshot says that the state after Step is written to File, a name in the folder of Welcome, with
// so many Bytes; or to several files, one for each part; or, in Error, why it could not be. Parts that are there and
// empty say that others write what was asked for.
type Snapshot struct {
	Type  string  `json:"type"`
	Step  uint64  `json:"step"`
	File  string  `json:"file,omitempty"`
	Bytes uint64  `json:"bytes,omitempty"`
	Parts *[]Part `json:"parts,omitempty"`
	// Reuses says that the program writes over files that are left to it, whose names begin with spare-.
	Reuses bool   `json:"reuses,omitempty"`
	Error  string `json:"error,omitempty"`
	// Size is how large the state is, whether it could be written or not; nil for a program that does not say.
	Size *Size `json:"size,omitempty"`
}

// Size is how large a state is, in bytes: all of it, what every worker writes for itself, which is all of it where it comes in no
// shares, what of it the ranks have between them, each its own shard, and what the program writes of this snapshot.
type Size struct {
	State   uint64 `json:"state"`
	Own     uint64 `json:"own"`
	Shards  uint64 `json:"shards,omitempty"`
	Written uint64 `json:"written"`
}

// Part is a file with a part of the state.
type Part struct {
	Key   string `json:"key"`
	File  string `json:"file"`
	Bytes uint64 `json:"bytes"`
}

// Want asks for shards of the state that the world begins with, by their keys. Ranges are, for each of them, the bytes that are needed of
// it, each from the first one to before the second; none for all. An agent that knows of no ranges gets all.
type Want struct {
	Type   string        `json:"type"`
	Parts  []string      `json:"parts"`
	Ranges [][][2]uint64 `json:"ranges,omitempty"`
}

// Had answers Want, in the order of its keys: File is the whole path of each part. They stay as they are until
// all processes of the worker have made their first step in the world. A file has all of its bytes, or, where ranges were asked for, these, each in its place, and nothing in particular elsewhere.
type Had struct {
	Type string `json:"type"`
	// Round is that of the world whose process has asked.
	Round uint64 `json:"round"`
	Parts []Part `json:"parts"`
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

// Leave tells a process that stands at the barrier to save the state after Step, and to end with code 0.
type Leave struct {
	Type string `json:"type"`
	Step uint64 `json:"step"`
}

// Left says that the state after Step is saved, and that the process is about to end.
type Left struct {
	Type string `json:"type"`
	Step uint64 `json:"step"`
}

// Stop tells a launcher to end the processes that it has started: another world is to follow.
type Stop struct {
	Type string `json:"type"`
}

// Stopped says that a launcher that was told to stop has no processes any more, and waits for the next world.
type Stopped struct {
	Type string `json:"type"`
}

// Progress brings numbers to show.
type Progress struct {
	Type       string             `json:"type"`
	TotalSteps uint64             `json:"totalSteps,omitempty"`
	Metrics    map[string]float64 `json:"metrics,omitempty"`
}

// Score says how good the state after Step is, by the metric of Welcome, or, in Error, why that is not known. The snapshot of that state
// was taken before it was evaluated.
type Score struct {
	Type  string   `json:"type"`
	Step  uint64   `json:"step"`
	Value *float64 `json:"value,omitempty"`
	Error string   `json:"error,omitempty"`
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
