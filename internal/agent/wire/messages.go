package wire

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"unicode/utf8"
)

// Protocol is the version that both sides speak.
const Protocol = 1

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
	TypeProgress = "progress"
	TypeFault    = "fault"
	TypeFinished = "finished"
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
	FDs       int    `json:"fds"`
}

// Join asks for the world.
type Join struct {
	Type string `json:"type"`
}

// World answers Join. For rank 0 the listening socket of the master port may come with it.
type World struct {
	Type          string `json:"type"`
	Term          uint64 `json:"term"`
	Round         uint64 `json:"round"`
	FromStep      uint64 `json:"fromStep"`
	Rank          int    `json:"rank"`
	Size          int    `json:"size"`
	LocalRank     int    `json:"localRank"`
	LocalSize     int    `json:"localSize"`
	WorkerRank    int    `json:"workerRank"`
	Workers       int    `json:"workers"`
	MasterAddress string `json:"masterAddress"`
	MasterPort    int    `json:"masterPort"`
	FDs           int    `json:"fds,omitempty"`
}

// Progress brings numbers to show.
type Progress struct {
	Type       string             `json:"type"`
	TotalSteps uint64             `json:"totalSteps,omitempty"`
	Metrics    map[string]float64 `json:"metrics,omitempty"`
}

// Fault is an exception that ends the program.
type Fault struct {
	Type    string `json:"type"`
	Step    uint64 `json:"step"`
	Message string `json:"message"`
}

// Finished says that training is over.
type Finished struct {
	Type string `json:"type"`
}

// Error says what was wrong; the connection ends with it.
type Error struct {
	Type    string `json:"type"`
	Message string `json:"message"`
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

// FromProgram decodes a message of a program into one of Hello, Join, Progress, Fault and Finished.
// Errors are written for the author of the program.
func FromProgram(line []byte) (any, error) {
	switch kind, err := typeOf(line); {
	case err != nil:
		return nil, err
	case kind == TypeHello:
		return decode[Hello](line, Hello.check)
	case kind == TypeJoin:
		return decode[Join](line, nil)
	case kind == TypeProgress:
		return decode[Progress](line, Progress.check)
	case kind == TypeFault:
		return decode[Fault](line, Fault.check)
	case kind == TypeFinished:
		return decode[Finished](line, nil)
	default:
		return nil, fmt.Errorf("a program sends hello, join, progress, fault or finished, not type %.40q", kind)
	}
}

// FromAgent decodes a message of the agent into one of Welcome and World. A message of type error
// becomes an error.
func FromAgent(line []byte) (any, error) {
	switch kind, err := typeOf(line); {
	case err != nil:
		return nil, err
	case kind == TypeWelcome:
		return decode[Welcome](line, nil)
	case kind == TypeWorld:
		return decode[World](line, nil)
	case kind == TypeError:
		message, err := decode[Error](line, nil)
		if err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("the agent refused: %s", message.Message)
	default:
		return nil, fmt.Errorf("a message of an unknown type %.40q from the agent", kind)
	}
}

func typeOf(line []byte) (string, error) {
	if !utf8.Valid(line) {
		return "", fmt.Errorf("a message is UTF-8; this one is not")
	}
	var head struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return "", fmt.Errorf("a message is one JSON object per line: %w", err)
	}
	return head.Type, nil
}

func decode[M any](line []byte, check func(M) error) (M, error) {
	var message M
	if err := json.Unmarshal(line, &message); err != nil {
		return message, fmt.Errorf("a message with a field that does not fit: %w", err)
	}
	if check != nil {
		return message, check(message)
	}
	return message, nil
}

func (h Hello) check() error {
	if h.Protocol != Protocol {
		return fmt.Errorf("hello speaks protocol %d, this agent speaks %d: use an SDK of the operator's version", h.Protocol, Protocol)
	}
	return nil
}

func (p Progress) check() error {
	if p.TotalSteps > maxCount {
		return fmt.Errorf("totalSteps is %d: the largest is 2^62", p.TotalSteps)
	}
	if len(p.Metrics) > MaxMetrics {
		return fmt.Errorf("%d metrics in one message: at most %d", len(p.Metrics), MaxMetrics)
	}
	for name, value := range p.Metrics {
		if err := CheckMetric(name, value); err != nil {
			return err
		}
	}
	return nil
}

func (f Fault) check() error {
	if f.Step > maxCount {
		return fmt.Errorf("step is %d: the largest is 2^62", f.Step)
	}
	return nil
}
