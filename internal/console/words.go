package console

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// span is a time in words, as kubectl has it; below ten seconds it is exact to the tenth.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	default:
		return duration.HumanDuration(d)
	}
}

// clock is a point in time, in UTC, so that two people see the same.
func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// pause is how long training stood still, exact enough to compare.
func pause(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}

// count is a number of things.
func count[N int | int32 | int64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.FormatInt(int64(n), 10) + " " + what + "s"
}

// are is the verb to a number of things.
func are[N int | int32 | int64](n N) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// list joins with commas, and "and" before the last.
func list(parts []string) string {
	switch len(parts) {
	case 0:
		return ""
	case 1:
		return parts[0]
	default:
		return strings.Join(parts[:len(parts)-1], ", ") + " and " + parts[len(parts)-1]
	}
}

// few names the first ones of many.
func few(names []string, most int) string {
	if len(names) <= most+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// sentence makes a sentence of a clause.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	text = strings.ToUpper(text[:1]) + text[1:]
	if strings.HasSuffix(text, ".") || strings.HasSuffix(text, "!") {
		return text
	}
	return text + "."
}

// ordinalWord is 1st, 2nd, 3rd and so on.
func ordinalWord(n int32) string {
	ending := "th"
	switch {
	case n%100 >= 11 && n%100 <= 13:
	case n%10 == 1:
		ending = "st"
	case n%10 == 2:
		ending = "nd"
	case n%10 == 3:
		ending = "rd"
	}
	return strconv.Itoa(int(n)) + ending
}

// quantity is an amount of one resource, by the planner's units.
func quantity(name string, amount int64) string {
	switch {
	case name == "cpu" || name == "requests.cpu" || name == "limits.cpu":
		return resource.NewMilliQuantity(amount, resource.DecimalSI).String()
	case strings.HasSuffix(name, "memory") || strings.HasSuffix(name, "storage"):
		return resource.NewQuantity(amount, resource.BinarySI).String()
	default:
		return strconv.FormatInt(amount, 10)
	}
}

// share is what one pod of a shape takes, devices first: "1 example.com/gpu, 4 cpu and 8Gi memory". That
// it is one pod goes without saying.
func (l *Look) share(id allocation.ShapeID) string {
	if id < 0 || int(id) >= len(l.cluster.Shapes) {
		return ""
	}
	var devices, others []string
	for i, amount := range l.cluster.Shapes[id].Request {
		name := l.cluster.Resources[i]
		switch text := quantity(name, amount) + " " + name; {
		case amount <= 0 || name == "pods":
		case l.device(i):
			devices = append(devices, text)
		default:
			others = append(others, text)
		}
	}
	slices.Sort(devices)
	slices.Sort(others)
	return list(append(devices, others...))
}

func (l *Look) device(i int) bool { return i < len(l.cluster.Devices) && l.cluster.Devices[i] }
