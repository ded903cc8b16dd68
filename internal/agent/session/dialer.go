package session

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/concertina-dev/concertina/internal/rendezvous/link"
)

// maxToken is the longest token in bytes.
const maxToken = link.MaxMessage

// Dialer connects with one operator.
type Dialer struct {
	address           string
	tokenFile, caFile string
	// from is the address of this machine that connections come from; the zero value for any.
	from netip.Addr
}

// NewDialer checks the address, host:port, and that both files can be read. The files are
// read again for every session, since both are replaced while the worker lives.
func NewDialer(address, tokenFile, caFile string) (*Dialer, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" || strings.Contains(host, "/") {
		return nil, fmt.Errorf("the rendezvous address %q is not of the form host:port", address)
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

// dial connects, and shows the token.
func (d *Dialer) dial(ctx context.Context) (*link.Conn, error) {
	authorities, err := d.authorities()
	if err != nil {
		return nil, err
	}
	token, err := d.token()
	if err != nil {
		return nil, err
	}
	var dialer net.Dialer
	if d.from.IsValid() {
		dialer.LocalAddr = &net.TCPAddr{IP: d.from.AsSlice()}
	}
	return link.Dial(ctx, d.address, token, &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS13}, dialer.DialContext)
}
