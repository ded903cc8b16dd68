// Package server is where agents come: TLS, the door for strangers, sessions and their messages. It drives one
// machine of the package rendezvous for each job, and is the Coordinator that the controller talks to.
package server
