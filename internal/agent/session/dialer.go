package session

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1/rendezvousv1connect"
)

const (
	// connectTimeout bounds the TCP connection.
	connectTimeout = 2 * time.Second
	// handshakeTimeout bounds the TLS handshake. It is that of the operator (handshakeTimeout there): when thousands
	// come at once, one that has waited for most of its turn must not begin anew behind all others.
	handshakeTimeout = 5 * time.Second
	// pingAfter is how long a connection may bring nothing before it is pinged, pingTimeout how
	// long the answer may take. Directives come more often; it is for an operator that has given none yet.
	pingAfter   = 10 * time.Second
	pingTimeout = 2 * time.Second
	// maxDirective is the longest directive in bytes.
	maxDirective = 64 << 10
	// maxToken is the longest token in bytes.
	maxToken = 64 << 10
)

// Dialer makes clients for one operator.
type Dialer struct {
	address           string
	tokenFile, caFile string
	// from is the address of this machine that connections come from; the zero value for any.
	from netip.Addr
}

// NewDialer checks the address, https://host:port, and that both files can be read. The files are
// read again for every stream, since both are replaced while the worker lives.
func NewDialer(address, tokenFile, caFile string) (*Dialer, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Scheme != "https" || parsed.Port() == "" || parsed.Hostname() == "" {
		return nil, fmt.Errorf("the rendezvous address %q is not of the form https://host:port", address)
	}
	d := &Dialer{address: address, tokenFile: tokenFile, caFile: caFile}
	if _, err := d.authorities(); err != nil {
		return nil, err
	}
	if _, err := d.token(); err != nil {
		return nil, err
	}
	return d, nil
}

// From is the same dialer with connections that come from this address of the machine.
func (d *Dialer) From(address netip.Addr) *Dialer {
	from := *d
	from.from = address
	return &from
}

func (d *Dialer) authorities() (*x509.CertPool, error) {
	text, err := os.ReadFile(d.caFile)
	if err != nil {
		return nil, fmt.Errorf("read the operator's CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("read the operator's CA: %s holds no certificate", d.caFile)
	}
	return pool, nil
}

func (d *Dialer) token() (string, error) {
	text, err := os.ReadFile(d.tokenFile)
	if err != nil {
		return "", fmt.Errorf("read the service account token: %w", err)
	}
	text = bytes.TrimSpace(text)
	if len(text) == 0 || len(text) > maxToken || bytes.ContainsAny(text, " \r\n\x00") {
		return "", fmt.Errorf("read the service account token: %s holds no token", d.tokenFile)
	}
	return string(text), nil
}

func (d *Dialer) authenticate(header http.Header) error {
	token, err := d.token()
	if err != nil {
		return err
	}
	header.Set("Authorization", "Bearer "+token)
	return nil
}

// client returns a client with connections of its own, and what closes them.
func (d *Dialer) client() (rendezvousv1connect.RendezvousClient, func(), error) {
	authorities, err := d.authorities()
	if err != nil {
		return nil, nil, err
	}
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	line := &line{from: d.from}
	transport := &http.Transport{
		Protocols:           &protocols,
		DialContext:         line.dial,
		TLSHandshakeTimeout: handshakeTimeout,
		TLSClientConfig:     &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS13},
		HTTP2:               &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
	client := rendezvousv1connect.NewRendezvousClient(
		&http.Client{Transport: transport}, d.address,
		connect.WithReadMaxBytes(maxDirective))
	return client, line.hangUp, nil
}

// line is the connections of one client. The transport would keep one that its stream has just
// left; each client has one stream only.
type line struct {
	from  netip.Addr
	mu    sync.Mutex
	over  bool
	conns []net.Conn
}

func (l *line) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: connectTimeout}
	if l.from.IsValid() {
		dialer.LocalAddr = &net.TCPAddr{IP: l.from.AsSlice()}
	}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
	l.conns = append(l.conns, conn)
	return conn, nil
}

func (l *line) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	for _, conn := range l.conns {
		_ = conn.Close()
	}
}
