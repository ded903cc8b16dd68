package link

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

const (
	// Protocol is what both sides name in the handshake (RFC 7301). Who speaks anything else is refused there.
	Protocol = "concertina-rendezvous"
	// MaxMessage is the longest message in bytes, the token included.
	MaxMessage = 64 << 10
)

// kind is what a message is.
type kind byte

const (
	kindToken kind = 1 + iota
	kindReport
	kindDirective
	kindPulse
	kindEnd
)

const (
	// headBytes are the kind and the length of a message.
	headBytes = 4
	// maxLength is the longest that a head can tell of.
	maxLength = 1<<24 - 1
)

// Conn is one side of a session. Reading and writing may be done at the same time, each by one goroutine.
type Conn struct{ tls *tls.Conn }

// New returns a Conn over a connection whose handshake is done, or is done by the first message.
func New(secured *tls.Conn) *Conn { return &Conn{tls: secured} }

// Secured is config with what a session wants of TLS: 1.3, and that both name Protocol.
func Secured(config *tls.Config) *tls.Config {
	config = config.Clone()
	config.MinVersion = tls.VersionTLS13
	config.NextProtos = []string{Protocol}
	// An agent comes back to another operator, which knows no ticket of this one.
	config.SessionTicketsDisabled = true
	return config
}

// Agreed says whether the other side of a handshake that is done speaks Protocol. TLS refuses who names another one, and
// nobody who names none.
func Agreed(conn *tls.Conn) error {
	if spoken := conn.ConnectionState().NegotiatedProtocol; spoken != Protocol {
		return fmt.Errorf("the other side speaks %q, not %q", spoken, Protocol)
	}
	return nil
}

// SendToken says who the agent is. It is the first message.
func (c *Conn) SendToken(token string) error { return c.write(kindToken, []byte(token)) }

// SendReport sends the agent's state.
func (c *Conn) SendReport(report *rendezvousv1.Report) error { return c.send(kindReport, report) }

// Directive returns the next directive, or nil when the operator only says that it is there. Errors: the status with
// which the operator has ended the session, or what befell the connection.
func (c *Conn) Directive() (*rendezvousv1.Directive, error) {
	directive := &rendezvousv1.Directive{}
	found, err := c.receive(func(k kind, body []byte) error {
		switch k {
		case kindDirective:
			return parse(body, directive)
		case kindPulse:
			return nil
		case kindEnd:
			return ended(body)
		default:
			return unexpected(k)
		}
	})
	if err != nil || found == kindPulse {
		return nil, err
	}
	return directive, nil
}

// ended is the status with which the operator ends a session.
func ended(body []byte) error {
	var said spb.Status
	if err := parse(body, &said); err != nil {
		return err
	}
	return &Ended{status.FromProto(&said)}
}

// Ended is why the operator has ended a session.
type Ended struct{ why *status.Status }

// Error says it in words.
func (e *Ended) Error() string { return fmt.Sprintf("%s: %s", e.why.Code(), e.why.Message()) }

// GRPCStatus has status.Code tell the code.
func (e *Ended) GRPCStatus() *status.Status { return e.why }

// Token returns the token of the agent, which must be what comes next.
func (c *Conn) Token() (token string, err error) {
	_, err = c.receive(func(k kind, body []byte) error {
		if k != kindToken {
			return unexpected(k)
		}
		token = string(body)
		return nil
	})
	return token, err
}

// Report returns the next report. Errors: io.EOF when the agent has hung up between two messages, a status when what it
// sends cannot be read, or what befell the connection.
func (c *Conn) Report() (*rendezvousv1.Report, error) {
	report := &rendezvousv1.Report{}
	_, err := c.receive(func(k kind, body []byte) error {
		if k != kindReport {
			return unexpected(k)
		}
		return parse(body, report)
	})
	if err != nil {
		return nil, err
	}
	return report, nil
}

// Answer sends a directive; nil says no more than that the operator is there.
func (c *Conn) Answer(directive *rendezvousv1.Directive) error {
	if directive == nil {
		return c.write(kindPulse, nil)
	}
	return c.send(kindDirective, directive)
}

// lingers bounds how much of what an agent still sends is read once its session is over.
const lingers = 1 << 20

// End tells the agent why its session is over, with the status that err is or wraps, and waits until the agent has hung
// up, for so long at most: were the connection closed before what it has sent is read, it might not get the answer.
func (c *Conn) End(err error, patience time.Duration) {
	deadline := time.Now().Add(patience)
	if c.tls.SetDeadline(deadline) != nil || c.send(kindEnd, status.Convert(err).Proto()) != nil || c.tls.CloseWrite() != nil {
		return
	}
	// What comes is not looked at, so it need not be decrypted.
	_, _ = io.Copy(io.Discard, io.LimitReader(c.tls.NetConn(), lingers))
}

// EndRead and EndWrite end the reading or the writing that goes on, and all later ones.
func (c *Conn) EndRead()  { _ = c.tls.SetReadDeadline(time.Unix(1, 0)) }
func (c *Conn) EndWrite() { _ = c.tls.SetWriteDeadline(time.Unix(1, 0)) }

// Close hangs up.
func (c *Conn) Close() error { return c.tls.Close() }

// buffers are for messages while they are written or read.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

const (
	// keepBytes is the largest buffer that is kept, leastBytes the smallest that is made.
	keepBytes, leastBytes = 16 << 10, 512
)

func giveBack(buffer *[]byte) {
	if cap(*buffer) <= keepBytes {
		buffers.Put(buffer)
	}
}

func (c *Conn) send(k kind, message proto.Message) error {
	buffer := buffers.Get().(*[]byte)
	defer giveBack(buffer)
	framed, err := proto.MarshalOptions{}.MarshalAppend(append((*buffer)[:0], make([]byte, headBytes)...), message)
	if err != nil {
		return fmt.Errorf("write a message: %w", err)
	}
	*buffer = framed
	return c.writeFramed(k, framed)
}

func (c *Conn) write(k kind, body []byte) error {
	return c.writeFramed(k, append(make([]byte, headBytes, headBytes+len(body)), body...))
}

// writeFramed writes a message that has room for its head before it.
func (c *Conn) writeFramed(k kind, framed []byte) error {
	n := len(framed) - headBytes
	if n > maxLength {
		return tooLong(n) // less than that is refused by who reads it
	}
	framed[0], framed[1], framed[2], framed[3] = byte(k), byte(n>>16), byte(n>>8), byte(n)
	_, err := c.tls.Write(framed)
	return err
}

// receive reads a message, and says of which kind it was.
func (c *Conn) receive(take func(kind, []byte) error) (kind, error) { return receive(c.tls, take) }

// receive reads a message, whoever sends it. Errors: io.EOF when nothing comes any more, io.ErrUnexpectedEOF when that is
// in the middle of one.
func receive(from io.Reader, take func(kind, []byte) error) (kind, error) {
	var head [headBytes]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return 0, err
	}
	n := int(head[1])<<16 | int(head[2])<<8 | int(head[3])
	if n > MaxMessage {
		return 0, tooLong(n)
	}
	buffer := buffers.Get().(*[]byte)
	defer giveBack(buffer)
	body, err := readBody(from, (*buffer)[:0], n)
	*buffer = body
	if err != nil {
		return 0, err
	}
	k := kind(head[0])
	return k, take(k, body)
}

// readBody reads n bytes. It takes memory for what has come, not for what was announced.
func readBody(from io.Reader, body []byte, n int) ([]byte, error) {
	for len(body) < n {
		if len(body) == cap(body) {
			body = slices.Grow(body, min(n-len(body), max(leastBytes, cap(body))))
		}
		more, err := from.Read(body[len(body):min(cap(body), n)])
		body = body[:len(body)+more]
		if err != nil && len(body) < n {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return body, err
		}
	}
	return body, nil
}

func parse(body []byte, into proto.Message) error {
	if err := proto.Unmarshal(body, into); err != nil {
		return status.Errorf(codes.InvalidArgument, "a message cannot be read: %v", err)
	}
	return nil
}

func unexpected(k kind) error {
	return status.Errorf(codes.InvalidArgument, "a message of kind %d is not expected here", k)
}

func tooLong(n int) error {
	return status.Errorf(codes.ResourceExhausted, "a message has %d bytes, it may have %d", n, MaxMessage)
}
