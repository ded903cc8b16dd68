package traces

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/concertina-dev/concertina/internal/replay"
)

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestChurnTraces(t *testing.T) {
	counted, end, err := Counted(write(t, `{"metadata": {"gap_seconds": 300}, "data": [0, 2, 2, 1]}`))
	if err != nil || end != 20*time.Minute {
		t.Errorf("ends at %s, %v", end, err)
	}
	minutes := func(n int) time.Duration { return time.Duration(n) * time.Minute }
	if diff := cmp.Diff([]replay.NodeChange{{At: minutes(5)}, {At: minutes(5), Node: 1}, {At: minutes(15), Node: 1, Gone: true}}, counted); diff != "" {
		t.Error(diff)
	}
	// A number that is free is used again.
	named, end, err := Named(write(t, "0,add,a\r\n0,add,b\r\n60000,remove,a\r\n120000,add,c\r\n"))
	if err != nil || end != 2*time.Minute {
		t.Errorf("ends at %s, %v", end, err)
	}
	if diff := cmp.Diff([]replay.NodeChange{{}, {Node: 1}, {At: minutes(1), Gone: true}, {At: minutes(2)}}, named); diff != "" {
		t.Error(diff)
	}
}

func TestBrokenChurnTraces(t *testing.T) {
	for text, want := range map[string]string{
		"0,add,a\n60000,remove,b\n":          "trace:2: node b is not there",
		"0,add,a\n60000,add,a\n":             "trace:2: node a is there already",
		"0,add,a\n60000,lost,a\n":            `trace:2: "lost" is neither`,
		"5,add,a\n4,add,b\n":                 "trace:2: 4 ms is before",
		"soon,add,a\n":                       "trace:1: milliseconds is \"soon\"",
		"0,add,a\n0,add\n":                   "trace:2: wrong number of fields",
		"-1,add,a\n":                         "trace:1: milliseconds is -1",
		"99999999999999999999999999,add,a\n": "trace:1: milliseconds is",
	} {
		if _, _, err := Named(write(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: the error is %v, want %q", text, err, want)
		}
	}
	if _, _, err := Named(write(t, "")); err == nil {
		t.Error("an empty trace is read")
	}
	for text, want := range map[string]string{
		`{`:             "unexpected end",
		`{"data": [1]}`: "no trace",
		`{"metadata": {"gap_seconds": 1}, "data": [1, -2]}`:        "number 2 is -2 nodes",
		`{"metadata": {"gap_seconds": 1}, "data": [1, 100000000]}`: "number 2 is 100000000 nodes",
		`{"metadata": {"gap_seconds": 1}, "data": []}`:             "no trace",
	} {
		if _, _, err := Counted(write(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: the error is %v, want %q", text, err, want)
		}
	}
}
