package elastic_test

import (
	"context"
	"fmt"
	"os"

	"github.com/concertina-dev/concertina/pkg/elastic"
)

// Without an agent the program is a world of one. It fits a line through points.
func Example() {
	for _, name := range []string{"CONCERTINA_SOCKET", "RANK"} {
		_ = os.Unsetenv(name)
	}
	run, err := elastic.Join(context.Background(), elastic.Options{
		Samples: 100, Epochs: 40, GlobalBatch: 10, Seed: 1,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	slope := 0.0
	err = run.Train(func(ctx context.Context, w elastic.World) error {
		for step := range run.Steps(ctx) {
			gradient := 0.0
			for indices, weight := range step.MicroBatches() {
				for _, i := range indices {
					x := float64(i) / 100
					gradient += weight * (slope*x - 3*x) * x / float64(len(indices))
				}
			}
			// With more ranks than one: average the gradient over them here.
			slope -= gradient
		}
		return run.Err()
	})
	fmt.Printf("slope %.2f after %d steps, error %v\n", slope, run.TotalSteps(), err)
	// Output: slope 3.00 after 400 steps, error <nil>
}
