// Package process starts programs and reaps whatever becomes a child of the agent.
//
// The agent is the first process of its container, or the reaper of its descendants: an orphan
// becomes its child, and it must wait for it. The package knows nothing of worlds.
package process
