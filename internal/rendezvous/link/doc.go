// Package link is what a session travels on: one connection over TLS 1.3 that carries messages, each with its kind and
// its length before it.
//
// A connection carries one session, so that it needs no streams, no flow control of its own and no goroutine but the one
// that reads: that is what a worker costs the operator while nothing happens, ten thousand times. The same over HTTP/2
// took 2.5 times the processor time for a beat and 3 times the memory for a connection (docs/benchmarks.md).
//
// What follows the handshake, in which both sides must name Protocol:
//
//	agent     TOKEN     REPORT  REPORT ...
//	operator            DIRECTIVE or PULSE ...  END
//
// A message has a byte for its kind, three for the length of what follows (big endian, at most MaxMessage), and that:
// the token as it is, reports and directives as proto/ has them, END as a google.rpc.Status. A PULSE is empty.
package link
