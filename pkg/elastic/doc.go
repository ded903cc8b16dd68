// Package elastic is what a Go training program imports to train under Concertina.
//
// A program joins, and trains in one world after the other: in each it learns its rank, the number of
// ranks and where rank 0 listens. Run.Steps deals out the samples, every sample of an epoch exactly
// once whatever happens to the world, and marks each step for the operator; that costs some
// nanoseconds a step. How the ranks exchange gradients is up to the program.
//
//	var model Model // and what else lasts from one step to the next
//	run, err := elastic.Join(ctx, elastic.Options{
//		Samples: n, Epochs: 30, GlobalBatch: 128, Seed: 1, State: elastic.Gob(&model),
//	})
//	if err != nil {
//		return err
//	}
//	return run.Train(func(ctx context.Context, w elastic.World) error { // once per world
//		ring, err := ring.Dial(ctx, w) // closes its connections when ctx ends
//		if err != nil {
//			return err
//		}
//		defer ring.Close()
//		for step := range run.Steps(ctx) { // from where the state is
//			for indices, weight := range step.MicroBatches() {
//				// add weight times the gradient of the mean loss over these samples
//			}
//			// average the gradient over the ranks
//			step.BeginUpdate()
//			// update the model
//			step.Report(loss)
//		}
//		return run.Err()
//	})
//
// When the world changes as planned, the processes that stay keep their state and those that join
// load a snapshot. After a loss the others make the step that it hit again, with the state that they have,
// if they had not yet begun to change it (Step.BeginUpdate); otherwise all load a snapshot. Programs that do something between two epochs loop over
// Run.Epochs, and call Run.Poll in what takes long.
//
// Steps that are made one after the other by all ranks together are what this is for. Training in
// which ranks run ahead of each other (asynchronous pipelines, local SGD) is not.
//
// Without an agent (CONCERTINA_SOCKET is not set) the world comes from RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT, and without these the program is a world of one: the same binary
// runs on a laptop.
package elastic
