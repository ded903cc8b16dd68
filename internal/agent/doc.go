// Package agent is the agent of one worker: it joins the job's world, runs the training program
// there, and tells the operator how it goes.
//
// The rooms: lifecycle decides (pure), process runs programs, socket and gate talk to them, completion
// asks them for a checkpoint, snapshots keeps what they have saved, session talks to the operator, reach
// finds out whether peers can be reached, masterport keeps a port for rank 0. This package reads the
// configuration and does what lifecycle says.
package agent
