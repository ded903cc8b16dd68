// Package elastic is what a Go training program imports to train under Concertina.
//
// A program joins, and trains in the world that it gets: it learns its rank, the number of ranks
// and where rank 0 listens. Run.Steps deals out the samples, every sample of an epoch exactly once
// whatever the number of ranks, and marks each step for the operator; that costs some nanoseconds a
// step. How the ranks exchange gradients is up to the program.
//
//	run, err := elastic.Join(ctx, elastic.Options{Samples: n, Epochs: 30, GlobalBatch: 128, Seed: 1})
//	if err != nil {
//		return err
//	}
//	return run.Train(func(ctx context.Context, w elastic.World) error {
//		ring, err := ring.Dial(ctx, w)
//		if err != nil {
//			return err
//		}
//		for step := range run.Steps(ctx) {
//			for indices, weight := range step.MicroBatches() {
//				// add weight times the gradient of the mean loss over these samples
//			}
//			// average the gradient over the ranks, update the model
//			step.Report(loss)
//		}
//		return run.Err()
//	})
//
// Without an agent (CONCERTINA_SOCKET is not set) the world comes from RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT, and without these the program is a world of one: the same binary
// runs on a laptop.
package elastic
