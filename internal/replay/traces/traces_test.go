package traces

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/concertina-dev/concertina/internal/replay"
)

// Completion times of the jobs of testdata on two nodes with two devices each, worked out by hand. A job waits 60 s for
// the next tick where it comes at 0, none where it comes at one, and 30 s for its start.
func TestWorkloadsByHand(t *testing.T) {
	cluster := replay.Cluster{Nodes: 2, DevicesPerNode: 2}
	for file, want := range map[string][]float64{
		// One worker takes two passes of 2 s for a step: 10 steps, then 10 that count double. Two on a node take 3 s.
		"profiled.csv": {60 + 30 + 40 + 40, 30 + 30 + 30},
		// Four workers on two nodes: 0.5 + 2/4 + 0.25 + 0.25 s a step.
		"scaling.csv": {60 + 30 + 100, 30 + 150},
	} {
		jobs, err := Workload(filepath.Join("testdata", "workloads", file), "")
		if err != nil {
			t.Fatal(err)
		}
		got, err := replay.PublishedTicks.Run(jobs, cluster, replay.NewTiresias(cluster))
		if err != nil {
			t.Fatal(err)
		}
		for i, job := range got.Jobs {
			if job.JCT != want[i] {
				t.Errorf("%s: job %s took %g s, want %g", file, job.Name, job.JCT, want[i])
			}
		}
	}
}

func TestErrorsNameFileAndLine(t *testing.T) {
	for _, c := range []struct{ name, file, old, replacement, want string }{
		{"number", "workloads/profiled.csv", "600", "soon", `profiled.csv:3: time is "soon", which is no whole number`},
		{"before the beginning", "workloads/profiled.csv", "600", "-1", "profiled.csv:3: time is -1"},
		{"application", "workloads/profiled.csv", "600,toy", "600,boat", `profiled.csv:3: application "boat" is not in`},
		{"too wide", "workloads/profiled.csv", "toy,2,2", "toy,3,2", "profiled.csv:3: num_replicas is 3, a batch of 2 lets it be at most 2"},
		{"batch", "workloads/profiled.csv", "toy,2,2", "toy,2,7", "profiled.csv:3: the profiles in"},
		{"twice", "workloads/profiled.csv", "two,", "one,", "profiled.csv:3: job one is in line 2 already"},
		{"no name", "workloads/profiled.csv", "two,", ",", "profiled.csv:3: name is empty"},
		{"cell", "workloads/profiled.csv", "two,600,", "two,600", "profiled.csv:3: wrong number of fields"},
		{"quote", "workloads/profiled.csv", "two", "\"two", "profiled.csv:3"},
		{"column", "workloads/profiled.csv", "time", "when", "profiled.csv:1: column time is missing"},
		{"strange column", "workloads/profiled.csv", "name,", "name,name,", `profiled.csv:1: column "name" is not expected`},
		{"cap", "apps.csv", ",64,2", ",0,2", "apps.csv:2: replica_cap is 0"},
		{"table", "throughput/toy.csv", "measured,11", "guessed,11", `toy.csv:4: table is "guessed"`},
		{"no time", "throughput/toy.csv", "3,1", "0,0", "toy.csv:3: step_time_s is 0"},
		{"exchange", "throughput/toy.csv", "3,1", "3,4", "toy.csv:3: sync_time_s is above step_time_s"},
		{"placement", "throughput/toy.csv", "measured,11,2,2,1,4,2\n", "", "no time of a pass of 1 samples on nodes 11"},
		{"epoch", "epochs/toy-progress.csv", "1,10", "2,10", "toy-progress.csv:3: epoch is 2, it must be 1"},
		{"backwards", "epochs/toy-progress.csv", "2,30", "2,3", "toy-progress.csv:4: progress is 3"},
		{"short", "epochs/toy-progress.csv", "2,30\n", "", "toy-progress.csv: there are 2 epochs"},
		{"gain", "epochs/toy-batch.csv", "1,2,20", "1,NaN,20", `toy-batch.csv:3: gain is "NaN"`},
		{"no gain", "epochs/toy-batch.csv", "2,1,2,20\n", "", "a batch of 2"},
		{"steps", "workloads/scaling.csv", "4,100", "4,0", "scaling.csv:2: steps is 0"},
		{"parallel", "workloads/scaling.csv", "0.5,2", "0.5,0", "scaling.csv:3: parallel_s is 0"},
		{"absurd", "workloads/scaling.csv", "0.5,2", "1e300,2", "scaling.csv:3: serial_s is 1e+300, it must be at most 1e+09"},
		{"hardly anything", "workloads/scaling.csv", "0.5,2", "0.5,5e-324", "scaling.csv:3: parallel_s is 5e-324, it must be at least 1e-09"},
		{"absurd time", "throughput/toy.csv", "3,1", "1e18,1", "toy.csv:3: step_time_s is 1e+18, it must be at most 1e+09"},
		{"absurd progress", "epochs/toy-progress.csv", "2,30", "2,1e30", "toy-progress.csv:4: progress is 1e+30, it must be at most 1e+15"},
		{"bound", "workloads/scaling.csv", "600,4", "600,5", "scaling.csv:3: workers is 5, it must be from 1 to 4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			folder := t.TempDir()
			if err := os.CopyFS(folder, os.DirFS("testdata")); err != nil {
				t.Fatal(err)
			}
			broken := filepath.Join(folder, filepath.FromSlash(c.file))
			text, err := os.ReadFile(broken)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), c.old) {
				t.Fatalf("%s does not have %q", c.file, c.old)
			}
			if err := os.WriteFile(broken, []byte(strings.Replace(string(text), c.old, c.replacement, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			workload := broken
			if !strings.HasPrefix(c.file, "workloads/") {
				workload = filepath.Join(folder, "workloads", "profiled.csv")
			}
			if _, err = Workload(workload, ""); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q in it", err, c.want)
			}
		})
	}
}

// A column of deadlines may be there; a job with an empty cell has none.
func TestDeadlines(t *testing.T) {
	text, err := os.ReadFile("testdata/workloads/scaling.csv")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for cell, want := range map[string]struct {
		deadline int64
		err      string
	}{
		"": {}, "5000": {deadline: 5000}, "soon": {err: `:3: deadline_s is "soon"`}, "600": {err: ":3: deadline_s is 600, it must be after 600"},
	} {
		file := filepath.Join(t.TempDir(), "jobs.csv")
		with := strings.Join([]string{lines[0] + ",deadline_s", lines[1] + ",", lines[2] + "," + cell}, "\n") + "\n"
		if err := os.WriteFile(file, []byte(with), 0o600); err != nil {
			t.Fatal(err)
		}
		jobs, err := Workload(file, "")
		switch {
		case want.err != "" && (err == nil || !strings.Contains(err.Error(), want.err)):
			t.Errorf("%q: the error is %v, want %s", cell, err, want.err)
		case want.err == "" && (err != nil || jobs[0].Deadline != 0 || jobs[1].Deadline != want.deadline):
			t.Errorf("%q: %v, %+v", cell, err, jobs)
		}
	}
}

// A pipe gives its text once.
func TestWorkloadFromStandardInput(t *testing.T) {
	text, err := os.ReadFile("testdata/workloads/profiled.csv")
	if err != nil {
		t.Fatal(err)
	}
	want, err := Workload("testdata/workloads/profiled.csv", "testdata")
	if err != nil {
		t.Fatal(err)
	}
	read := func(text []byte) ([]replay.Job, error) {
		from, to, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := to.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := to.Close(); err != nil {
			t.Fatal(err)
		}
		before := os.Stdin
		os.Stdin = from
		defer func() { os.Stdin = before }()
		return Workload("-", "testdata")
	}
	if got, err := read(text); err != nil || len(got) != len(want) || got[0].Name != want[0].Name {
		t.Errorf("%d jobs, %v; want %d", len(got), err, len(want))
	}
	if _, err := read(nil); err == nil || !strings.Contains(err.Error(), "standard input: the file is empty") {
		t.Errorf("nothing: %v", err)
	}
}

func TestWorkloadWithoutJobs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "none.csv")
	for text, want := range map[string]string{
		"": "the file is empty", strings.Join(scalingColumns, ",") + "\n": "there are no jobs",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Workload(file, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %q in it", err, want)
		}
	}
	if _, err := Workload(filepath.Join(t.TempDir(), "absent.csv"), ""); err == nil {
		t.Error("a file that is not there is no error")
	}
}
