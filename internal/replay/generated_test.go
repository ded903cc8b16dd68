package replay

import (
	"math"
	"reflect"
	"testing"
)

func TestGeneratedWorkloads(t *testing.T) {
	cluster := Cluster{Nodes: 16, DevicesPerNode: 4}
	for _, load := range []float64{0.5, 1, 2} {
		for seed := range uint64(10) {
			of := Generated{Seed: seed, Load: load, Span: 4 * 3600}
			jobs := of.Jobs(cluster)
			if err := check(jobs, cluster); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			work, scales, stays := 0.0, 0, 0
			for _, j := range jobs {
				s := j.Program.(*Scaling)
				work += float64(s.Steps) * s.StepTime(Placement{1})
				switch speedup := s.StepTime(Placement{1}) / s.StepTime(filled(min(s.Most, 16), 4)); {
				case speedup > 8:
					scales++
				case speedup < 2:
					stays++
				}
				if j.Submitted < 0 || j.Submitted >= of.Span {
					t.Fatalf("seed %d: %s is submitted at %d s", seed, j.Name, j.Submitted)
				}
			}
			if wants := load * 64 * 4 * 3600; work < 0.9*wants || work > wants+mostWork {
				t.Errorf("seed %d: there are %.0f device-seconds to do, the load says %.0f", seed, work, wants)
			}
			if math.Min(float64(scales), float64(stays)) < 0.05*float64(len(jobs)) {
				t.Errorf("seed %d: of %d jobs %d scale and %d do not", seed, len(jobs), scales, stays)
			}
			if !reflect.DeepEqual(jobs, of.Jobs(cluster)) {
				t.Errorf("seed %d makes other jobs the second time", seed)
			}
		}
	}
}
