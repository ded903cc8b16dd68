package server

import (
	"context"
	"io"
	"log"
	"net/http"
	"time"
)

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

// write bounds writing; d <= 0 ends it now. The stream is reset when the bound is reached.
func (s deadlines) write(d time.Duration) { _ = s.control.SetWriteDeadline(time.Now().Add(d)) }

// nullLogger drops what net/http says about clients that come and go.
func nullLogger() *log.Logger { return log.New(io.Discard, "", 0) }
