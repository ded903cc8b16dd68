package checkpoint

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

// The kernel closes what a process that was killed had taken, still takes connections for it until it comes to its port, and resets
// them then: nobody is there.
func TestReachIsRefusedWhereTheProcessEnds(t *testing.T) {
	ending, peer := takesConnections(t)
	ended := make(chan error, 1)
	go func() {
		ended <- func() error {
			taken, err := ending.AcceptTCP()
			if err != nil {
				return err
			}
			if err := taken.Close(); err != nil {
				return err
			}
			queued, err := ending.AcceptTCP()
			if err != nil {
				return err
			}
			return errors.Join(ending.Close(), queued.SetLinger(0), queued.Close())
		}()
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
	if taken := <-ended; taken != greetings {
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
