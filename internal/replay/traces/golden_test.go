package traces

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/concertina-dev/concertina/internal/replay"
)

// golden is the file with the published results.
type golden struct {
	Cluster struct {
		Nodes       int `json:"nodes"`
		GPUsPerNode int `json:"gpus_per_node"`
	} `json:"cluster"`
	Loads map[string]map[string]goldenRun `json:"loads"`
	// PerJob are completion times by load, workload, policy and job.
	PerJob map[string]map[string]map[string]map[string]float64 `json:"per_job_jct_s"`
}

type goldenRun struct {
	Jobs     int                     `json:"jobs"`
	Policies map[string]goldenPolicy `json:"policies"`
}

type goldenPolicy struct {
	Average  float64 `json:"avg_jct_s"`
	Makespan float64 `json:"makespan_s"`
	Restarts int     `json:"restarts"`
	Ticks    int     `json:"ticks"`
}

// TestPublishedResults runs the published workloads, where REPLAY_DATA names the folder that has them.
func TestPublishedResults(t *testing.T) {
	data := os.Getenv("REPLAY_DATA")
	if data == "" {
		t.Skip("REPLAY_DATA names no folder")
	}
	data = filepath.Join(data, "pollux")
	text, err := os.ReadFile(filepath.Join(data, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var want golden
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	cluster := replay.Cluster{Nodes: want.Cluster.Nodes, DevicesPerNode: want.Cluster.GPUsPerNode}
	checked := 0
	for load, runs := range want.Loads {
		folder := "workloads-" + load
		if load == "1.0" {
			folder = "workloads"
		}
		for workload, run := range runs {
			jobs, err := Workload(filepath.Join(data, folder, workload+".csv"), "")
			if err != nil {
				t.Fatal(err)
			}
			if len(jobs) != run.Jobs {
				t.Errorf("%s at load %s has %d jobs, want %d", workload, load, len(jobs), run.Jobs)
			}
			for name, policy := range map[string]replay.Policy{
				"tiresias": replay.NewTiresias(cluster), "optimus": replay.NewOptimus(cluster),
			} {
				got, err := replay.PublishedTicks.Run(jobs, cluster, policy)
				if err != nil {
					t.Fatal(err)
				}
				now := goldenPolicy{Average: got.Average, Makespan: got.Makespan, Restarts: got.Resizes, Ticks: got.Ticks}
				if now != run.Policies[name] {
					t.Errorf("%s, %s at load %s: %+v, published is %+v", name, workload, load, now, run.Policies[name])
				}
				checked++
				for _, job := range got.Jobs {
					if want, known := want.PerJob[load][workload][name][job.Name]; known && job.JCT != want {
						t.Errorf("%s, %s at load %s: %s took %g s, published is %g", name, workload, load, job.Name, job.JCT, want)
					}
				}
			}
		}
	}
	if checked == 0 {
		t.Error("there are no published results")
	}
	t.Logf("%d results are as published", checked)
}

// TestBatchesAreSplitAsPublished compares the rule with its table.
func TestBatchesAreSplitAsPublished(t *testing.T) {
	data := os.Getenv("REPLAY_DATA")
	if data == "" {
		t.Skip("REPLAY_DATA names no folder")
	}
	f := &folder{path: filepath.Join(data, "pollux")}
	if err := f.readApplications(); err != nil {
		t.Fatal(err)
	}
	columns := []string{"application", "target_batch_size", "num_replicas", "local_bsz", "accum_steps", "batch_size", "predict_local_bsz", "predict_accum_steps"}
	err := readTable(filepath.Join(f.path, "batching.csv"), columns, func(l *line) error {
		n := l.integer("num_replicas", 1, most)
		want := replay.Split{Local: l.integer("local_bsz", 1, most), Accumulated: l.integer("accum_steps", 0, most)}
		got := f.profiles[l.text("application")].Split(l.integer("target_batch_size", 1, most), n)
		if got != want || got.Batch(n) != l.integer("batch_size", 1, most) {
			l.fault("the split is %+v", got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
