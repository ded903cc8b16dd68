package link

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"
)

const (
	// connectTimeout bounds the TCP connection.
	connectTimeout = 2 * time.Second
	// HandshakeTimeout bounds the TLS handshake, on both sides: when thousands come at once, one that has waited for
	// most of its turn must not begin anew behind all others.
	HandshakeTimeout = 5 * time.Second
)

// DialFunc opens a connection.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Dial connects an agent with the operator at host:port and shows its token. Dialer is nil for the usual way; config
// says whom to trust, and the name that the certificate must bear where it is another one than the host.
func Dial(ctx context.Context, address, token string, config *tls.Config, dialer DialFunc) (*Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("the operator's address is not host:port: %w", err)
	}
	if dialer == nil {
		dialer = (&net.Dialer{}).DialContext
	}
	connecting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := dialer(connecting, "tcp", address)
	if err != nil {
		return nil, err
	}
	config = Secured(config)
	if config.ServerName == "" {
		config.ServerName = host
	}
	secured := tls.Client(conn, config)
	shaking, cancel := context.WithTimeout(ctx, HandshakeTimeout)
	defer cancel()
	if err := secured.HandshakeContext(shaking); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	one := New(secured)
	err = Agreed(secured)
	if err == nil {
		_ = secured.SetWriteDeadline(time.Now().Add(HandshakeTimeout))
		err = one.SendToken(token)
		_ = secured.SetWriteDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return one, nil
}
