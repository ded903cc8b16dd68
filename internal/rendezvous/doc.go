// Package rendezvous forms the worlds of training jobs: it knows who is expected and who is here,
// closes a round, assigns ranks, makes the round durable and only then publishes it.
//
// It is a pure state machine per job: events in, effects out. It knows nothing of Kubernetes, of RPC or of
// HTTP: the controller says through Coordinator what the next world should be made of, a Recorder makes rounds
// durable, and the package server, which the agents talk to, drives the machines.
package rendezvous
