package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/concertina-dev/concertina/internal/share"
)

// FromProgram decodes a message of a program into one of Hello, Join, Parked, Want, Snapshot, Aborted,
// Fault, Finished, Left, Stopped, Progress and Score. Errors are written for the author of the program.
func FromProgram(line []byte) (any, error) {
	kind, err := typeOf(line)
	if err != nil {
		return nil, err
	}
	switch kind {
	case TypeHello:
		return decode(line, Hello.check)
	case TypeJoin:
		return decode[Join](line, nil)
	case TypeParked:
		return decode(line, Parked.check)
	case TypeWant:
		return decode(line, Want.check)
	case TypeSnapshot:
		return decode(line, Snapshot.check)
	case TypeAborted:
		return decode(line, Aborted.check)
	case TypeFault:
		return decode(line, Fault.check)
	case TypeFinished:
		return decode(line, Finished.check)
	case TypeStopped:
		return decode[Stopped](line, nil)
	case TypeLeft:
		return decode(line, Left.check)
	case TypeProgress:
		return decode(line, Progress.check)
	case TypeScore:
		return decode(line, Score.check)
	default:
		return nil, fmt.Errorf("a program sends hello, join, parked, want, snapshot, aborted, fault, finished, left, stopped, progress or score, not type %.40q", kind)
	}
}

// FromAgent decodes a message of the agent into one of Welcome, World, Had, Go, Save, Abort, Raise, End,
// Stop, Leave and Unknown. A message of type error becomes an error.
func FromAgent(line []byte) (any, error) {
	kind, err := typeOf(line)
	if err != nil {
		return nil, err
	}
	switch kind {
	case TypeWelcome:
		return decode[Welcome](line, nil)
	case TypeWorld:
		return decode[World](line, nil)
	case TypeGo:
		return decode[Go](line, nil)
	case TypeSave:
		return decode[Save](line, nil)
	case TypeAbort:
		return decode[Abort](line, nil)
	case TypeRaise:
		return decode[Raise](line, nil)
	case TypeEnd:
		return decode[End](line, nil)
	case TypeHad:
		return decode[Had](line, nil)
	case TypeLeave:
		return decode[Leave](line, nil)
	case TypeStop:
		return decode[Stop](line, nil)
	case TypeError:
		message, err := decode[Error](line, nil)
		if err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("the agent refused: %s", message.Message)
	default:
		return Unknown{Type: kind}, nil
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
	if err := checkCount("totalSteps", p.TotalSteps); err != nil {
		return err
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

func (w Want) check() error {
	if len(w.Parts) > share.MostShards {
		return fmt.Errorf("want names %d parts: at most %d", len(w.Parts), share.MostShards)
	}
	for _, key := range w.Parts {
		if !share.IsShard(key) {
			return fmt.Errorf("want names %.64q, which is no shard", key)
		}
	}
	return w.checkRanges()
}

func (w Want) checkRanges() error {
	if len(w.Ranges) > 0 && len(w.Ranges) != len(w.Parts) {
		return fmt.Errorf("want has the ranges of %d parts, and names %d", len(w.Ranges), len(w.Parts))
	}
	count := 0
	for _, ranges := range w.Ranges {
		for _, r := range ranges {
			if r[0] >= r[1] || r[1] > maxCount {
				return fmt.Errorf("want has the range from %d to before %d: it is of at least one byte, below 2^62", r[0], r[1])
			}
		}
		if count += len(ranges); count > MaxRanges {
			return fmt.Errorf("want has more than %d ranges", MaxRanges)
		}
	}
	for i, key := range w.Parts {
		if len(w.Ranges) > 0 && slices.Contains(w.Parts[:i], key) {
			return fmt.Errorf("want names %.64q twice", key)
		}
	}
	return nil
}

func (s Score) check() error {
	if (s.Value == nil) == (s.Error == "") {
		return errors.New("score has either a value or an error")
	}
	return checkCount("step", s.Step)
}

func (f Fault) check() error    { return checkCount("step", f.Step) }
func (p Parked) check() error   { return checkCount("step", p.Step) }
func (a Aborted) check() error  { return checkCount("step", a.Step) }
func (f Finished) check() error { return checkCount("step", f.Step) }
func (l Left) check() error     { return checkCount("step", l.Step) }

func (s Snapshot) check() error {
	ways := 0
	for _, way := range []bool{s.File != "", s.Parts != nil, s.Error != ""} {
		if way {
			ways++
		}
	}
	if ways != 1 {
		return errors.New("snapshot has either a file, or parts, or an error")
	}
	errs := []error{checkCount("step", s.Step), checkCount("bytes", s.Bytes)}
	if s.Size != nil {
		errs = append(errs, checkCount("size.state", s.Size.State), checkCount("size.own", s.Size.Own),
			checkCount("size.shards", s.Size.Shards), checkCount("size.written", s.Size.Written))
	}
	if s.Parts != nil {
		errs = append(errs, checkParts(*s.Parts))
	}
	return errors.Join(errs...)
}

func checkParts(parts []Part) error {
	if len(parts) > MaxParts {
		return fmt.Errorf("%d parts in one message: at most %d", len(parts), MaxParts)
	}
	for _, part := range parts {
		if _, ok := share.Parse(part.Key); !ok {
			return fmt.Errorf("a part is named s<share>.<of>.<layout> or r<rank>.<of>.<layout>, not %.40q", part.Key)
		}
		if err := checkCount("bytes", part.Bytes); err != nil {
			return err
		}
	}
	return nil
}

func checkCount(name string, count uint64) error {
	if count > maxCount {
		return fmt.Errorf("%s is %d: the largest is 2^62", name, count)
	}
	return nil
}
