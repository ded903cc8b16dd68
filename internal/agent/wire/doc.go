// Package wire is the socket between the agent and a training process: JSON objects, one per line,
// and file descriptors beside them. docs/program-protocol.md specifies the messages.
//
// It knows how a message looks and how long it may be, and nothing of when one is sent.
package wire
