package fleet

import (
	"slices"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/speed"
)

// What the status says of sizes is read as it was written, also in the middle of a change of pace.
func TestSizesAreReadAsTheyWereWritten(t *testing.T) {
	all := []speed.Seen{
		{Workers: 2, Nodes: 1, StepsPerSecond: 2.5, Steps: 100, Settled: 4, At: start},
		{Workers: 4, Nodes: 2, StepsPerSecond: 5, Steps: 70, Took: 20*time.Second + time.Millisecond, At: start},
	}
	if got := SizesSeen(&v1alpha1.SpeedStatus{Sizes: SizesStatus(all)}); !slices.Equal(got, all) {
		t.Errorf("%+v, want %+v", got, all)
	}
}
