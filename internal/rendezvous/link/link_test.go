package link

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// certified is a certificate for this machine, and who trusts it.
func certified(t testing.TB) (*tls.Config, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return Secured(&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS13}), roots
}

// pair is both sides of a session, whose token was shown.
func pair(t *testing.T) (agent, operator *Conn) {
	t.Helper()
	config, roots := certified(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	accepted := make(chan *Conn, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			accepted <- nil
			return
		}
		secured := tls.Server(conn, config)
		if secured.Handshake() != nil {
			_ = conn.Close()
		}
		accepted <- New(secured)
	}()
	agent, err = Dial(t.Context(), listener.Addr().String(), "a token", &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, nil)
	if err != nil {
		t.Fatal(err)
	}
	operator = <-accepted
	t.Cleanup(func() {
		_ = agent.Close()
		_ = operator.Close()
	})
	if token, err := operator.Token(); token != "a token" || err != nil {
		t.Fatalf("the token is %q, %v", token, err)
	}
	return agent, operator
}

// A server that is none of ours, behind an address that is wrong, gets no token.
func TestNoTokenForAnotherServer(t *testing.T) {
	config, roots := certified(t)
	config.NextProtos = nil
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	heard := make(chan []byte, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			heard <- nil
			return
		}
		said, _ := io.ReadAll(conn)
		_ = conn.Close()
		heard <- said
	}()
	conn, err := Dial(t.Context(), listener.Addr().String(), "a token", &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, nil)
	if err == nil {
		_ = conn.Close()
	}
	if err == nil || !strings.Contains(err.Error(), Protocol) {
		t.Errorf("connected with %v", err)
	}
	if said := <-heard; len(said) > 0 {
		t.Errorf("it was told %q", said)
	}
}

// What is sent arrives, of any length that is allowed, and in order.
func TestMessagesArrive(t *testing.T) {
	agent, operator := pair(t)
	rapid.Check(t, func(t *rapid.T) {
		var lengths []int
		for range rapid.IntRange(1, 8).Draw(t, "messages") {
			lengths = append(lengths, rapid.OneOf(rapid.IntRange(0, 200), rapid.IntRange(0, MaxMessage-16)).Draw(t, "length"))
		}
		sent := make(chan error, 1)
		go func() {
			for i, n := range lengths {
				if err := agent.SendReport(&rendezvousv1.Report{Sequence: uint64(i), SnapshotError: strings.Repeat("x", n)}); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		for i, n := range lengths {
			report, err := operator.Report()
			if err != nil || report.GetSequence() != uint64(i) || len(report.GetSnapshotError()) != n {
				t.Fatalf("report %d of %d bytes: %v", i, n, err)
			}
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	})
	want := &rendezvousv1.Directive{Term: 7, Round: 3, TicketKey: []byte("key")}
	for _, answer := range []*rendezvousv1.Directive{want, nil, want} {
		if err := operator.Answer(answer); err != nil {
			t.Fatal(err)
		}
		got, err := agent.Directive()
		if err != nil || (got == nil) != (answer == nil) || answer != nil && !proto.Equal(got, answer) {
			t.Errorf("%v arrives as %v, %v", answer, got, err)
		}
	}
}

// The agent learns why its session is over, however much of what it sends has not been read, and the operator that the
// agent has hung up.
func TestTheEndIsTold(t *testing.T) {
	agent, operator := pair(t)
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		for range 64 {
			if agent.SendReport(&rendezvousv1.Report{SnapshotError: strings.Repeat("x", 4<<10)}) != nil {
				return
			}
		}
	}()
	if _, err := operator.Report(); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		operator.End(fmt.Errorf("around: %w", status.Error(codes.NotFound, "the job is gone")), 10*time.Second)
		_ = operator.Close()
	}()
	_, err := agent.Directive()
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "the job is gone") {
		t.Errorf("the session ends with %v", err)
	}
	<-sending
	_ = agent.Close()
	<-over

	agent, operator = pair(t)
	_ = agent.Close()
	if _, err := operator.Report(); !errors.Is(err, io.EOF) {
		t.Errorf("an agent that hangs up ends its session with %v", err)
	}
}

// Reading and writing end when they are told to.
func TestWhoWaitsIsFreed(t *testing.T) {
	_, operator := pair(t)
	read := make(chan error, 1)
	go func() {
		_, err := operator.Report()
		read <- err
	}()
	operator.EndRead()
	if err := <-read; err == nil {
		t.Error("a report came from nowhere")
	}
	written := make(chan error, 1)
	go func() {
		for {
			if err := operator.Answer(&rendezvousv1.Directive{TicketKey: make([]byte, MaxMessage/2)}); err != nil {
				written <- err
				return
			}
		}
	}()
	operator.EndWrite()
	if err := <-written; err == nil {
		t.Error("nobody reads, and there is no end of writing")
	}
}

// What cannot be is refused with a status that says so, and takes no memory for what was only announced.
func TestWhatIsNoMessage(t *testing.T) {
	for name, row := range map[string]struct {
		sends []byte
		code  codes.Code
	}{
		"too long":        {[]byte{byte(kindReport), 1, 0, 1}, codes.ResourceExhausted},
		"another kind":    {[]byte{byte(kindDirective), 0, 0, 0}, codes.InvalidArgument},
		"no kind":         {[]byte{0, 0, 0, 0}, codes.InvalidArgument},
		"a second token":  {[]byte{byte(kindToken), 0, 0, 1, 'x'}, codes.InvalidArgument},
		"no report":       {[]byte{byte(kindReport), 0, 0, 1, 0xff}, codes.InvalidArgument},
		"half a head":     {[]byte{byte(kindReport), 0}, codes.Unknown},
		"half a report":   {[]byte{byte(kindReport), 0, 0, 9, 1}, codes.Unknown},
		"nothing of many": {[]byte{byte(kindReport), 1, 0, 0}, codes.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			agent, operator := pair(t)
			if _, err := agent.tls.Write(row.sends); err != nil {
				t.Fatal(err)
			}
			if err := agent.tls.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			report, err := operator.Report()
			if report != nil || err == nil || status.Code(err) != row.code || row.code == codes.Unknown && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%v, %v, want %s", report, err, row.code)
			}
		})
	}
	announced := &counting{}
	if body, err := readBody(announced, nil, MaxMessage); !errors.Is(err, io.ErrUnexpectedEOF) || announced.asked > leastBytes || cap(body) > 2*leastBytes {
		t.Errorf("%d bytes are made room for, %d asked for at once: %v", cap(body), announced.asked, err)
	}
}

// counting is a reader without bytes that notes how many it is asked for.
type counting struct{ asked int }

func (c *counting) Read(into []byte) (int, error) {
	c.asked = max(c.asked, len(into))
	return 0, io.EOF
}

func TestDialSaysWhatIsWrong(t *testing.T) {
	config, _ := certified(t)
	_, others := certified(t)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).Handshake()
			_ = conn.Close()
		}
	}()
	for _, row := range []struct{ address, says string }{
		{"operator", "not host:port"}, {listener.Addr().String(), "TLS handshake"},
	} {
		conn, err := Dial(t.Context(), row.address, "", &tls.Config{RootCAs: others, MinVersion: tls.VersionTLS13}, nil)
		if err == nil {
			_ = conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: %v, want %q", row.address, err, row.says)
		}
	}
	_ = listener.Close()
	<-served
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Dial(over, listener.Addr().String(), "", &tls.Config{RootCAs: others, MinVersion: tls.VersionTLS13}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("after its end: %v", err)
	}
}

// stillborn is a connection from which so many bytes come, and then nothing.
type stillborn struct {
	net.Conn
	*bytes.Reader
}

func (s stillborn) Read(into []byte) (int, error) { return s.Reader.Read(into) }

// FuzzBody reads what announces to be so long.
func FuzzBody(f *testing.F) {
	f.Add([]byte("abc"), 3)
	f.Add([]byte("abc"), 4)
	f.Add([]byte{}, 0)
	f.Fuzz(func(t *testing.T, sent []byte, n int) {
		if n < 0 || n > MaxMessage {
			return
		}
		body, err := readBody(stillborn{Reader: bytes.NewReader(sent)}, nil, n)
		switch {
		case len(sent) >= n && (err != nil || !bytes.Equal(body, sent[:n])):
			t.Errorf("%d of %d bytes: %d, %v", n, len(sent), len(body), err)
		case len(sent) < n && !errors.Is(err, io.ErrUnexpectedEOF):
			t.Errorf("%d of %d bytes: %v", n, len(sent), err)
		}
	})
}

// FuzzHead reads messages until they end or one cannot be: each is what its head says, and nothing comes after the first
// that is too long or cut off.
func FuzzHead(f *testing.F) {
	for _, sent := range []string{
		"", "\x02", "\x02\x00\x00\x00", "\x02\x00\x00\x03abc\x04\x00\x00\x00", "\x01\x00\x00\x04abc", "\xff\xff\xff\xffabc",
		"\x03\x01\x00\x00", "\x03\x01\x00\x01",
	} {
		f.Add([]byte(sent))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		from, rest := bytes.NewReader(sent), sent
		for {
			var body []byte
			found, err := receive(from, func(_ kind, b []byte) error {
				body = bytes.Clone(b)
				return nil
			})
			n := -1 // of no message
			if len(rest) >= headBytes {
				n = int(binary.BigEndian.Uint32(rest) & maxLength)
			}
			switch {
			case len(rest) == 0 && errors.Is(err, io.EOF):
				return
			case n > MaxMessage && status.Code(err) == codes.ResourceExhausted:
				return
			case (n < 0 || n <= MaxMessage && len(rest) < headBytes+n) && errors.Is(err, io.ErrUnexpectedEOF):
				return
			case n < 0 || n > MaxMessage || len(rest) < headBytes+n || err != nil || found != kind(rest[0]) || !bytes.Equal(body, rest[headBytes:headBytes+n]):
				t.Fatalf("of %d bytes that begin with %x: kind %d, %d bytes, %v", len(rest), rest[:min(len(rest), headBytes)], found, len(body), err)
			}
			rest = rest[headBytes+n:]
		}
	})
}
