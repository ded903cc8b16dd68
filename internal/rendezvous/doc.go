// Package rendezvous forms the worlds of training jobs: it knows who is expected and who is here,
// closes a round, assigns ranks, makes the round durable and only then publishes it.
//
// The heart is a pure state machine per job (events in, effects out); an RPC server that the agents
// talk to is wrapped around it. The package knows its own protocol and nothing of Kubernetes: the
// controller says through Coordinator what the next world should be made of, and a Recorder makes
// rounds durable.
package rendezvous
