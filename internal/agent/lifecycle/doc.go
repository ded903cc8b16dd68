// Package lifecycle decides what an agent does: when the program starts, when it is told to stop,
// when it is killed, and with which exit code the agent leaves.
//
// It is pure: events and the time go in, effects come out in the order in which they must be done.
// It knows nothing of processes, sockets or the operator's protocol.
package lifecycle
