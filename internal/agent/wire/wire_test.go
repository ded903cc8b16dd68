package wire_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/concertina-dev/concertina/internal/agent/wire"
)

func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "pair")
		conn, err := net.FileConn(file)
		if err != nil {
			t.Fatal(err)
		}
		_ = file.Close()
		ends[i] = conn.(*net.UnixConn)
		t.Cleanup(func() { _ = conn.Close() })
	}
	return ends[0], ends[1]
}

func TestMessagesOfThePage(t *testing.T) {
	for name, row := range map[string]struct {
		line string
		want any
	}{
		"hello":    {`{"type":"hello","protocol":2,"localRank":3}`, wire.Hello{Type: "hello", Protocol: 2, LocalRank: 3}},
		"launcher": {`{"type":"hello","protocol":2,"launcher":true}`, wire.Hello{Type: "hello", Protocol: 2, Launcher: true}},
		"stopped":  {`{"type":"stopped"}`, wire.Stopped{Type: "stopped"}},
		"join":     {`{"type":"join"}`, wire.Join{Type: "join"}},
		"finished": {`{"type":"finished"}`, wire.Finished{Type: "finished"}},
		"progress": {`{"type":"progress","totalSteps":900,"metrics":{"loss":0.12}}`,
			wire.Progress{Type: "progress", TotalSteps: 900, Metrics: map[string]float64{"loss": 0.12}}},
		"fault": {`{"type":"fault","step":17,"message":"Traceback …"}`,
			wire.Fault{Type: "fault", Step: 17, Message: "Traceback …"}},
		"parked":  {`{"type":"parked","step":17}`, wire.Parked{Type: "parked", Step: 17}},
		"aborted": {`{"type":"aborted","step":16}`, wire.Aborted{Type: "aborted", Step: 16}},
		"snapshot": {`{"type":"snapshot","step":17,"file":"17.3.part","bytes":1048576}`,
			wire.Snapshot{Type: "snapshot", Step: 17, File: "17.3.part", Bytes: 1048576}},
		"no snapshot": {`{"type":"snapshot","step":17,"error":"no space left on device: …"}`,
			wire.Snapshot{Type: "snapshot", Step: 17, Error: "no space left on device: …"}},
		"no snapshot of this size": {`{"type":"snapshot","step":17,"error":"full","size":{"state":9,"own":3,"written":6}}`,
			wire.Snapshot{Type: "snapshot", Step: 17, Error: "full", Size: &wire.Size{State: 9, Own: 3, Written: 6}}},
		"want": {`{"type":"want","parts":["d1.4.0123456789abcdef"]}`, wire.Want{Type: "want", Parts: []string{"d1.4.0123456789abcdef"}}},
		"want some": {`{"type":"want","parts":["d1.4.0123456789abcdef","d2.4.0123456789abcdef"],"ranges":[[[0,5],[7,9]],[]]}`,
			wire.Want{Type: "want", Parts: []string{"d1.4.0123456789abcdef", "d2.4.0123456789abcdef"}, Ranges: [][][2]uint64{{{0, 5}, {7, 9}}, {}}}},
		"unknown field": {`{"type":"join","later":[1,2]}`, wire.Join{Type: "join"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := wire.FromProgram([]byte(row.line))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestMessagesOfTheAgent(t *testing.T) {
	for name, row := range map[string]struct {
		line string
		want any
	}{
		"welcome": {`{"type":"welcome","protocol":2,"namespace":"ml","job":"digits","attempt":1,"slot":0,"slots":1,"snapshots":"/concertina/memory/snapshots","interval":"auto","fds":1}`,
			wire.Welcome{Type: "welcome", Protocol: 2, Namespace: "ml", Job: "digits", Attempt: 1, Slots: 1,
				Snapshots: "/concertina/memory/snapshots", Interval: "auto", FDs: 1}},
		"world": {`{"type":"world","term":1,"round":4,"parent":3,"fromStep":17,"rank":0,"size":2,"localRank":0,"localSize":1,"workerRank":0,"workers":2,` +
			`"masterAddress":"10.0.0.7","masterPort":40123,"restore":true,"snapshot":"/concertina/memory/snapshots/3-17","writer":true,"fds":1}`,
			wire.World{Type: "world", Term: 1, Round: 4, Parent: 3, FromStep: 17, Size: 2, LocalSize: 1, Workers: 2,
				MasterAddress: "10.0.0.7", MasterPort: 40123, Restore: true,
				Snapshot: "/concertina/memory/snapshots/3-17", Writer: true, FDs: 1}},
		"had": {`{"type":"had","round":4,"parts":[{"key":"d1.4.0123456789abcdef","file":"/a","bytes":1}]}`,
			wire.Had{Type: "had", Round: 4, Parts: []wire.Part{{Key: "d1.4.0123456789abcdef", File: "/a", Bytes: 1}}}},
		"go":           {`{"type":"go"}`, wire.Go{Type: "go"}},
		"save":         {`{"type":"save","step":17}`, wire.Save{Type: "save", Step: 17}},
		"abort":        {`{"type":"abort","round":3,"reason":"…"}`, wire.Abort{Type: "abort", Round: 3, Reason: "…"}},
		"raise":        {`{"type":"raise"}`, wire.Raise{Type: "raise"}},
		"end":          {`{"type":"end"}`, wire.End{Type: "end"}},
		"stop":         {`{"type":"stop"}`, wire.Stop{Type: "stop"}},
		"unknown type": {`{"type":"later","x":1}`, wire.Unknown{Type: "later"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := wire.FromAgent([]byte(row.line))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestMessagesThatAreRefused(t *testing.T) {
	for name, row := range map[string]struct{ line, want string }{
		"not JSON":        {`hello`, "one JSON object per line"},
		"no object":       {`[1]`, "one JSON object per line"},
		"empty":           {``, "one JSON object per line"},
		"not UTF-8":       {"{\"type\":\"\xff\"}", "UTF-8"},
		"no type":         {`{}`, "not type"},
		"of the agent":    {`{"type":"world"}`, "not type"},
		"other protocol":  {`{"type":"hello","protocol":1,"localRank":0}`, "protocol 1"},
		"parked far off":  {`{"type":"parked","step":9223372036854775807}`, "2^62"},
		"aborted far off": {`{"type":"aborted","step":9223372036854775807}`, "2^62"},
		"empty snapshot":  {`{"type":"snapshot","step":17}`, "a file, or parts, or an error"},
		"twice":           {`{"type":"want","parts":["d1.4.0123456789abcdef","d1.4.0123456789abcdef"],"ranges":[[],[]]}`, "twice"},
		"nothing of it":   {`{"type":"want","parts":["d1.4.0123456789abcdef"],"ranges":[[[5,5]]]}`, "at least one byte"},
		"beyond all":      {`{"type":"want","parts":["d1.4.0123456789abcdef"],"ranges":[[[5,9223372036854775807]]]}`, "2^62"},
		"of another part": {`{"type":"want","parts":["d1.4.0123456789abcdef"],"ranges":[[],[]]}`, "the ranges of 2 parts"},
		"too many ranges": {`{"type":"want","parts":["d1.4.0123456789abcdef"],"ranges":[[` + strings.Repeat("[1,2],", 1024) + `[1,2]]]}`, "more than 1024"},
		"both":            {`{"type":"snapshot","step":17,"file":"17.part","error":"full"}`, "a file, or parts, or an error"},
		"huge snapshot":   {`{"type":"snapshot","step":17,"file":"17.part","bytes":9223372036854775807}`, "2^62"},
		"wrong field":     {`{"type":"hello","protocol":2,"localRank":"0"}`, "does not fit"},
		"negative steps":  {`{"type":"progress","totalSteps":-1}`, "does not fit"},
		"endless steps":   {`{"type":"progress","totalSteps":9223372036854775807}`, "2^62"},
		"infinite number": {`{"type":"progress","metrics":{"loss":1e999}}`, "does not fit"},
		"bad name":        {`{"type":"progress","metrics":{"a b":1}}`, "a name has"},
		"long name":       {`{"type":"progress","metrics":{"` + strings.Repeat("a", 33) + `":1}}`, "a name has"},
		"many metrics":    {`{"type":"progress","metrics":{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1}}`, "9 metrics"},
	} {
		t.Run(name, func(t *testing.T) {
			message, err := wire.FromProgram([]byte(row.line))
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %+v, %v; want an error with %q", message, err, row.want)
			}
		})
	}
}

func TestCheckMetric(t *testing.T) {
	if err := wire.CheckMetric("val_accuracy2", -1); err != nil {
		t.Error(err)
	}
	for _, value := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if wire.CheckMetric("loss", value) == nil {
			t.Errorf("%v was accepted", value)
		}
	}
}

func TestLinesKeepTheirBounds(t *testing.T) {
	writer, reader := pair(t)
	longest := bytes.Repeat([]byte("x"), wire.MaxLine-1)
	go func() {
		_, _ = writer.Write([]byte("one\ntwo\n\n"))
		_, _ = writer.Write(append(longest, '\n'))
		_, _ = writer.Write(append(longest, "xx\n"...))
	}()
	conn := wire.NewConn(reader)
	for _, want := range []string{"one", "two", "", string(longest)} {
		line, err := conn.ReadLine()
		if err != nil || string(line) != want {
			t.Fatalf("read %.20q (%d bytes), %v; want %.20q", line, len(line), err, want)
		}
	}
	if line, err := conn.ReadLine(); !errors.Is(err, wire.ErrTooLong) {
		t.Errorf("read %d bytes, %v; want ErrTooLong", len(line), err)
	}
}

func TestAnUnfinishedLineIsNoMessage(t *testing.T) {
	writer, reader := pair(t)
	_, _ = writer.Write([]byte(`{"type":"join"}`))
	_ = writer.Close()
	if line, err := wire.NewConn(reader).ReadLine(); !errors.Is(err, io.EOF) {
		t.Errorf("read %q, %v; want EOF", line, err)
	}
}

func TestAConnectionThatIsReset(t *testing.T) {
	a, b := pair(t)
	// Closing with unread data resets the connection.
	_, _ = b.Write([]byte("unread"))
	_ = a.Close()
	if line, err := wire.NewReceiver(b).ReadLine(); err == nil {
		t.Errorf("read %q from a connection that was reset", line)
	}
}

func TestFilesTravelWithTheirMessage(t *testing.T) {
	a, b := pair(t)
	sender, receiver := wire.NewConn(a), wire.NewReceiver(b)
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	_, _ = file.WriteString("the page")
	if err := sender.Write(wire.Welcome{Type: wire.TypeWelcome, FDs: 1}, file); err != nil {
		t.Fatal(err)
	}
	line, err := receiver.ReadLine()
	if err != nil {
		t.Fatal(err)
	}
	message, err := wire.FromAgent(line)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := receiver.Take(2); err == nil {
		t.Error("two files were taken where one came")
	}
	files, err := receiver.Take(message.(wire.Welcome).FDs)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = files[0].Close() }()
	content := make([]byte, 20)
	n, _ := files[0].ReadAt(content, 0)
	if string(content[:n]) != "the page" {
		t.Errorf("the file holds %q", content[:n])
	}
}

func TestTheAgentKeepsNoFilesOfAProgram(t *testing.T) {
	a, b := pair(t)
	before := openFiles(t)
	for range 10 {
		if err := wire.NewConn(a).Write(wire.Join{Type: wire.TypeJoin}, os.Stdin, os.Stdin); err != nil {
			t.Fatal(err)
		}
	}
	agent := wire.NewConn(b)
	for range 10 {
		if _, err := agent.ReadLine(); err != nil {
			t.Fatal(err)
		}
	}
	if after := openFiles(t); after > before {
		t.Errorf("%d files are open, %d were before", after, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestErrorsOfTheAgent(t *testing.T) {
	_, err := wire.FromAgent([]byte(`{"type":"error","message":"local rank 0 belongs to another"}`))
	if err == nil || !strings.Contains(err.Error(), "belongs to another") {
		t.Errorf("got %v", err)
	}
	if _, err := wire.FromAgent([]byte(`later`)); err == nil {
		t.Error("what is no message was accepted")
	}
}

func TestTextIsCutBetweenCharacters(t *testing.T) {
	if got := wire.TailOf("aé", 1); got != "" {
		t.Errorf("TailOf = %q", got)
	}
	if got := wire.TailOf("abcé", 3); got != "cé" {
		t.Errorf("TailOf = %q", got)
	}
	if got := wire.HeadOf("aé", 2); got != "a" {
		t.Errorf("HeadOf = %q", got)
	}
	if got := wire.HeadOf("aé", 3); got != "aé" {
		t.Errorf("HeadOf = %q", got)
	}
}
