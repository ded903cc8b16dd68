// Package gate is the gate page: the memory that the agent and the training processes of one
// worker share, for what happens every step. docs/program-protocol.md specifies its layout.
//
// The agent makes a Page and reads it; a training process opens its Slot of it and writes there.
// The package knows nothing of either side beyond these words.
package gate
