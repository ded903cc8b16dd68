// Package socket is the agent's end of the unix socket: it admits the training processes of this
// worker, gives each of them its slot of the gate page and its place in the world, and keeps what
// they say.
package socket
