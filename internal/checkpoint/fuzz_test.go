package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// marker is in every snapshot that nobody without the secret may see.
const marker = "the state of the training"

// FuzzRequest sends a server whatever a stranger may send. It never gets a byte of a snapshot, and the server
// goes on serving.
func FuzzRequest(f *testing.F) {
	for _, request := range []string{
		"", "\x00", "GET /snapshots/3-17 HTTP/1.1\r\nHost: x\r\n\r\n", "GET /snapshots/3-17 HTTP/1.1\r\nHost: x\r\nAuthorization: Ticket \r\n\r\n",
		"GET /snapshots/../snapshots/3-17 HTTP/1.1\r\nHost: x\r\nAuthorization: Ticket 00\r\n\r\n", "PUT /snapshots/3-17 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
		"GET /snapshots/3-17 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"GET /snapshots/18446744073709551616-1 HTTP/1.0\r\nAuthorization: Bearer x\r\n\r\n",
	} {
		f.Add([]byte(request))
	}
	store := open(f, 2)
	want := put(f, store, ID{Round: 3, Step: 17}, []byte(strings.Repeat(marker, 100)))
	_, holder := serve(f, store)
	f.Fuzz(func(t *testing.T, request []byte) {
		conn, err := tls.Dial("tcp", holder.String(), pinned(holder.Certificate, fetcher))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(2 * headTimeout))
		_, _ = conn.Write(request) // it may have hung up already
		_ = conn.CloseWrite()
		answer, _ := io.ReadAll(conn)
		if bytes.Contains(answer, []byte(marker[:8])) {
			t.Errorf("%q is answered with a snapshot: %.200q", request, answer)
		}
		if _, err := fetch(t.Context(), open(t, 1), want, with(want, holder), fetcher); err != nil {
			t.Errorf("after %q nobody gets a snapshot: %v", request, err)
		}
	})
}

// FuzzAnswer has a holder answer whatever it likes. Only the snapshot that was wanted is taken, and nothing else
// is left behind.
func FuzzAnswer(f *testing.F) {
	data := []byte(strings.Repeat(marker, 3))
	answer := func(head string, body []byte) []byte { return append([]byte(head+"\r\n\r\n"), body...) }
	whole := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d", len(data))
	for _, seed := range [][]byte{
		nil, answer(whole, data), answer(whole, data[:10]), answer(whole, bytes.Repeat([]byte("x"), len(data))),
		answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", []byte("5\r\nhello\r\n0\r\n\r\n")),
		answer("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615", data), answer("HTTP/1.1 401 No\r\nContent-Length: 2", []byte("no")),
		answer("HTTP/1.1 302 Found\r\nLocation: https://elsewhere/", nil), answer("HTTP/1.1 100 Continue\r\n\r\n"+whole, data), []byte("nonsense\n"),
		answer(whole+"\r\nContent-Encoding: gzip", data),
	} {
		f.Add(seed)
	}
	certificate := newIdentity().certificate
	want := Snapshot{ID{Round: 3, Step: 17}, uint64(len(data)), sum(data)}
	f.Fuzz(func(t *testing.T, words []byte) {
		listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13})
		if err != nil {
			t.Fatal(err)
		}
		said := make(chan struct{})
		go func() {
			defer close(said)
			for { // Who has got nothing, or what is wrong, asks again.
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_ = conn.SetDeadline(time.Now().Add(stallTimeout))
				_, _ = conn.Read(make([]byte, 4<<10))
				_, _ = conn.Write(words)
				_ = conn.Close()
			}
		}()
		holder := Holder{Address: "127.0.0.1", Port: listener.Addr().(*net.TCPAddr).Port, Certificate: sha256.Sum256(certificate.Certificate[0])}
		store := open(t, 1)
		path, err := fetch(t.Context(), store, want, with(want, holder), fetcher)
		_ = listener.Close()
		<-said
		if err != nil {
			if left := files(t, store); len(left) > 0 {
				t.Errorf("%q left %v", words, left)
			}
			if len(err.Error()) > 4<<10 {
				t.Errorf("%q leads to an error of %d bytes", words, len(err.Error()))
			}
			return
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%q is taken for the snapshot: %q, %v", words, got, err)
		}
	})
}
