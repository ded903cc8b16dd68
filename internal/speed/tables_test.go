package speed_test

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/concertina-dev/concertina/internal/replay"
	"github.com/concertina-dev/concertina/internal/replay/traces"
	"github.com/concertina-dev/concertina/internal/speed"
)

// TestErrorOnMeasuredPrograms prints how far the estimates are from what was measured, where REPLAY_DATA names the folder
// with programs. A job has had some sizes for ten seconds each, on nodes of four devices; the error is that of a step's
// time at all sizes that it may have.
func TestErrorOnMeasuredPrograms(t *testing.T) {
	data := os.Getenv("REPLAY_DATA")
	if data == "" {
		t.Skip("REPLAY_DATA names no folder")
	}
	fmt.Printf("%-14s%8s%6s  %-12s%12s%12s%16s\n", "program", "batch", "max", "sizes seen", "mean error", "max error", "at 1 to 2×seen")
	for _, job := range programs(t, filepath.Join(data, "pollux")) {
		for _, seen := range [][]int{{1}, {1, 2}, {1, 2, 4}, {1, 2, 4, 8}, {1, 2, 4, 8, 16}} {
			if seen[len(seen)-1] > job.Program.Max() {
				break
			}
			mean, most, near := errorsOf(t, job.Program, seen)
			name, batch, _ := strings.Cut(job.Name, "/")
			fmt.Printf("%-14s%8s%6d  %-12s%11.1f%%%11.1f%%%15.1f%%\n", name, batch, job.Program.Max(), strings.Trim(fmt.Sprint(seen), "[]"), 100*mean, 100*most, 100*near)
		}
	}
}

// errorsOf are the mean error and the largest, of all sizes, and the largest up to twice the largest size seen.
func errorsOf(t *testing.T, p replay.Program, sizes []int) (mean, most, near float64) {
	placed := func(n int) replay.Placement {
		at := replay.Placement(slices.Repeat([]int{4}, n/4))
		if n%4 > 0 {
			at = append(at, n%4)
		}
		return at
	}
	var seen []speed.Observation
	for _, n := range sizes {
		pace := 1 / p.StepTime(placed(n))
		seen = append(seen, speed.Observation{Workers: n, Nodes: len(placed(n)), StepsPerSecond: pace, Steps: max(1, int64(10*pace))})
	}
	m := speed.Fit(seen, 1)
	for n := 1; n <= p.Max(); n++ {
		off := math.Abs(m.StepTime(n, len(placed(n)))/p.StepTime(placed(n)) - 1)
		if math.IsNaN(off) {
			t.Fatalf("%d workers take %g s", n, m.StepTime(n, len(placed(n))))
		}
		mean += off / float64(p.Max())
		most = max(most, off)
		if n <= 2*sizes[len(sizes)-1] {
			near = max(near, off)
		}
	}
	return mean, most, near
}

// programs are one job of each application and batch.
func programs(t *testing.T, folder string) []replay.Job {
	f, err := os.Open(filepath.Join(folder, "apps.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	name, batches := slices.Index(lines[0], "application"), slices.Index(lines[0], "target_batch_sizes")
	text := "name,time,application,num_replicas,batch_size\n"
	for _, l := range lines[1:] {
		for batch := range strings.SplitSeq(l[batches], ";") {
			text += fmt.Sprintf("%s/%s,0,%s,1,%s\n", l[name], batch, l[name], batch)
		}
	}
	file := filepath.Join(t.TempDir(), "programs.csv")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	jobs, err := traces.Workload(file, folder)
	if err != nil {
		t.Fatal(err)
	}
	return jobs
}
