package rendezvous

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// limitedListener closes connections beyond a number at once, so that nobody who has no token can
// use up the operator's memory or file descriptors.
type limitedListener struct {
	net.Listener
	max, maxPerHost int

	mu    sync.Mutex
	open  int
	hosts map[string]int
}

func newLimitedListener(listener net.Listener, max, maxPerHost int) *limitedListener {
	return &limitedListener{Listener: listener, max: max, maxPerHost: maxPerHost, hosts: map[string]int{}}
}

// Accept returns the next connection that is within the limits.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
		if err != nil || !l.enter(host) {
			_ = conn.Close()
			continue
		}
		return &limitedConn{Conn: conn, leave: sync.OnceFunc(func() { l.leave(host) })}, nil
	}
}

func (l *limitedListener) enter(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.max || l.hosts[host] >= l.maxPerHost {
		return false
	}
	l.open++
	l.hosts[host]++
	return true
}

func (l *limitedListener) leave(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.hosts[host]--; l.hosts[host] == 0 {
		delete(l.hosts, host)
	}
}

type limitedConn struct {
	net.Conn
	leave func()
}

// Close closes the connection and makes room for another.
func (c *limitedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// deadlines set how long reading from and writing to one stream may take.
type deadlines struct{ control *http.ResponseController }

type deadlinesKey struct{}

// withDeadlines makes the deadlines of a request reachable from its context: the RPC library has no
// other way to them.
func withDeadlines(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := deadlines{http.NewResponseController(w)}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), deadlinesKey{}, d)))
	})
}

func deadlinesOf(ctx context.Context) deadlines {
	return ctx.Value(deadlinesKey{}).(deadlines)
}

// read bounds reading; d <= 0 ends it now.
func (s deadlines) read(d time.Duration) { _ = s.control.SetReadDeadline(time.Now().Add(d)) }

// write bounds writing; d == 0 lifts the bound. The stream is reset when it is reached.
func (s deadlines) write(d time.Duration) {
	var at time.Time
	if d > 0 {
		at = time.Now().Add(d)
	}
	_ = s.control.SetWriteDeadline(at)
}

// nullLogger drops what net/http says about clients that come and go.
func nullLogger() *log.Logger { return log.New(io.Discard, "", 0) }
