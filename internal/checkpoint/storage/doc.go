// Package storage keeps checkpoints: snapshots that outlive all pods. It knows nothing of worlds; it is told which
// snapshot of which job to save, and finds, loads and collects what was saved.
//
// Below the prefix of the URL, each job has a folder of its own, so that jobs can share one:
//
//	NAMESPACE/NAME/UID/attempt-A/ROUND-STEP/manifest.json
//	                                       /data/SHA256     pieces of at most 8 MiB, named by what is in them
//	                                       /parts/KEY_HASH  a part was put: which pieces it is made of
//	                                       /scores/METRIC_VALUE  how good it is, as an evaluation says
//	                                       /holds/READER    somebody reads it
//	                                       /doomed/DELETER  somebody is about to delete it
//
// A checkpoint comes whole from one process (Save), or in parts from several: each puts some (Put), and one that is told
// when all are there writes the manifest (Finish). The records of parts are for whoever does that, and for who goes on with what
// another one has begun; nobody reads a checkpoint by them.
//
// Objects are created once and never changed. A checkpoint is complete when its manifest and all pieces that this
// names are there, and it is not doomed. Nothing depends on a clock, or on who is killed when:
//
//   - Whoever saves creates the manifest last, and calls the checkpoint complete only when it has looked again
//     after that: all pieces there, and not doomed.
//   - Whoever collects dooms a checkpoint first, and deletes it only if nobody holds it when it looks again after
//     that. The marks go last. Only what is older than a complete one is collected, and such a one is not begun again.
//   - Whoever reads takes hold first, and reads only what is not doomed when it looks again after that.
//
// So of two that meet, at least one sees the other. What is left half saved or half deleted is saved on by the next
// who saves the same, or deleted by the next who collects.
package storage
