// Package lifecycle decides what an agent does: when programs start, which world each process is
// given, when it stops at a barrier or leaves its world, when programs are told to stop or killed,
// and with which exit code the agent leaves.
//
// It is pure: events and the time go in, effects come out in the order in which they must be done.
// It knows nothing of processes, sockets, files or the operator's protocol.
package lifecycle
