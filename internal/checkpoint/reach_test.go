package checkpoint

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

// The kernel still takes connections for a process that was killed, until it comes to its port, and resets them then: nobody is there.
func TestReachIsRefusedWhereTheProcessEnds(t *testing.T) {
	ending, peer := takesConnections(t)
	ended := make(chan error, 1)
	go func() {
		conn, err := ending.AcceptTCP()
		if err == nil {
			err = errors.Join(ending.Close(), conn.SetLinger(0), conn.Close())
		}
		ended <- err
	}()
	if err := Reach(t.Context(), peer, fetcher); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("who has ended while it was asked for is not known to have: %v", err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// Something on the way may reset a connection, and somebody is at the port that resets all: neither says that nobody is there.
func TestReachIsNotRefusedWhereConnectionsBreak(t *testing.T) {
	breaking, peer := takesConnections(t)
	ended := make(chan int)
	go func() {
		taken := 0
		for {
			conn, err := breaking.AcceptTCP()
			if err != nil {
				ended <- taken
				return
			}
			taken++
			_ = errors.Join(conn.SetLinger(0), conn.Close())
		}
	}()
	if err := Reach(t.Context(), peer, fetcher); err == nil || errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("somebody is at the port: %v", err)
	}
	if err := breaking.Close(); err != nil {
		t.Fatal(err)
	}
	if taken := <-ended; taken != 2 {
		t.Errorf("it was asked for %d times", taken)
	}
}

// takesConnections is a port that takes connections, and the peer who would be there.
func takesConnections(t *testing.T) (*net.TCPListener, Holder) {
	t.Helper()
	_, peer := serve(t, nil)
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	peer.Port = listener.Addr().(*net.TCPAddr).Port
	return listener, peer
}
