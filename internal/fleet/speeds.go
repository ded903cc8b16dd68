package fleet

import (
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/speed"
)

// SizesSeen reads from the status how fast a job was at which size. What is no number is 0, which nobody believes.
func SizesSeen(status *v1alpha1.SpeedStatus) []speed.Seen {
	seen := make([]speed.Seen, 0, len(status.Sizes))
	for i := range status.Sizes {
		size := &status.Sizes[i]
		one := speed.Seen{
			Workers: int(value(size.Workers)), Nodes: int(value(size.Nodes)), StepsPerSecond: paceIn(size.StepsPerSecond),
			Settled: paceIn(size.SettledStepsPerSecond), Steps: value(size.Steps), At: timeOf(size.At),
		}
		if size.Time != nil {
			one.Took = max(0, size.Time.Duration)
		}
		seen = append(seen, one)
	}
	return seen
}

func paceIn(text string) float64 {
	pace, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0
	}
	return pace
}

// SizesStatus is what SizesSeen reads, to six digits and the second.
func SizesStatus(seen []speed.Seen) []v1alpha1.SizeSpeed {
	sizes := make([]v1alpha1.SizeSpeed, 0, len(seen))
	for i := range seen {
		one := &seen[i]
		size := v1alpha1.SizeSpeed{
			Workers: ptr.To(int32(one.Workers)), Nodes: ptr.To(int32(one.Nodes)), StepsPerSecond: paceText(one.StepsPerSecond),
			Steps: ptr.To(one.Steps), At: ptr.To(metav1.NewTime(one.At)),
		}
		if settled := paceText(one.Settled); one.Settled > 0 && settled != size.StepsPerSecond {
			size.SettledStepsPerSecond = settled
		}
		if one.Took > 0 {
			size.Time = &metav1.Duration{Duration: one.Took}
		}
		sizes = append(sizes, size)
	}
	return sizes
}

func paceText(pace float64) string { return strconv.FormatFloat(pace, 'g', 6, 64) }

// ProgressOf is what is believed of what a job's program says of its steps. An agent says no total once a step beyond it has begun: what
// was told before is judged then.
func ProgressOf(status *v1alpha1.TrainingJobStatus) speed.Progress {
	told := speed.Resume(float64(value(status.Speed.FirstTotalSteps)), float64(value(status.Speed.LeastTotalSteps)), status.Speed.Doubt != "")
	done, total := float64(value(status.Progress.Step)), float64(value(status.Progress.TotalSteps))
	if total == 0 && done >= told.Least() {
		total = told.Least()
	}
	told.Report(done, total)
	return told
}
