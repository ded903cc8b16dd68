package replay

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/fleet"
)

// bench replays a folder with these files beside the programs of a small example.
func bench(t *testing.T, files map[string]string) (lines map[string]float64, err error) {
	t.Helper()
	data := t.TempDir()
	folder := filepath.Join(data, "pollux")
	if err := os.CopyFS(folder, os.DirFS("../../../internal/replay/traces/testdata")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(folder, "workloads")); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		file := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	settings, err := fleet.LoadSettings("")
	if err != nil {
		t.Fatal(err)
	}
	all, err := Bench{
		Data: data, Settings: settings.Planning(), Pause: time.Second, Join: 30 * time.Second, Noise: 0.05, Seed: 1, Say: t.Logf,
	}.Measure()
	lines = map[string]float64{}
	for _, f := range all {
		lines[f.Name] = f.Value
	}
	return lines, err
}

const someJobs = "name,time,application,num_replicas,batch_size\none,0,toy,1,2\ntwo,600,toy,2,2\n"

// Workloads of which nothing was published are replayed as well, and figures that would need that are left out: those of others stay.
func TestAnyWorkloadOfTheFolderIsReplayed(t *testing.T) {
	golden := `{"cluster": {"nodes": 2, "gpus_per_node": 4}, "loads": {"1.0": {"known": {"policies": {"pollux": {"avg_jct_s": 100}}}}}}`
	for name, test := range map[string]struct {
		files        map[string]string
		has, without []string
	}{
		"nothing is published": {
			map[string]string{"workloads/mine.csv": someJobs, "workloads-10/mine.csv": someJobs},
			[]string{"jct_over_tiresias_mean", "jct_over_tiresias_mean_load_10", "halfshare_cost_jct", "fastpause_halfshare_cost_jct_load_1.0"},
			[]string{"jct_over_pollux_mean", "fastpause_jct_over_bound_mean"},
		},
		"of another one": {
			map[string]string{"workloads/known.csv": someJobs, "workloads/mine.csv": someJobs, "workloads-0.5/mine.csv": someJobs, "golden.json": golden},
			[]string{"jct_over_tiresias_mean", "jct_over_pollux_mean", "jct_over_tiresias_mean_load_0.5"},
			[]string{"jct_over_pollux_mean_load_0.5", "fastpause_jct_over_bound_mean"},
		},
		"at low loads only": {map[string]string{"workloads-0.5/mine.csv": someJobs}, []string{"jct_over_tiresias_mean_load_0.5"}, []string{"jct_over_tiresias_mean"}},
	} {
		got, err := bench(t, test.files)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, figure := range test.has {
			if _, there := got[figure]; !there {
				t.Errorf("%s: %s is missing: %v", name, figure, got)
			}
		}
		for _, figure := range test.without {
			if x, there := got[figure]; there {
				t.Errorf("%s: %s is %g, of nothing", name, figure, x)
			}
		}
	}
}

func TestFoldersThatAreNoData(t *testing.T) {
	for want, files := range map[string]map[string]string{
		"has no workloads":     {},
		"end with the load":    {"workloads-high/mine.csv": someJobs},
		"mine.csv:3: time is":  {"workloads/mine.csv": strings.Replace(someJobs, "600", "soon", 1)},
		"golden.json: invalid": {"workloads/mine.csv": someJobs, "golden.json": "nothing"},
	} {
		if got, err := bench(t, files); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %q: %v", err, want, got)
		}
	}
}
