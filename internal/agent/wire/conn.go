package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// ErrTooLong is returned by ReadLine for a message longer than MaxLine.
var ErrTooLong = errors.New("a message is longer than 64 KiB")

// maxFiles bounds the file descriptors that wait to be taken; more than these are closed.
const maxFiles = MaxParts

// Conn reads and writes messages on a unix stream socket. One goroutine may read while another
// writes.
type Conn struct {
	unix *net.UnixConn
	buf  []byte
	// files are the descriptors that came and were not taken yet; keep is false on the side that
	// is never sent any.
	files []*os.File
	keep  bool
}

// NewConn wraps a connection that brings no file descriptors: what a peer sends is closed.
func NewConn(unix *net.UnixConn) *Conn { return &Conn{unix: unix} }

// NewReceiver wraps a connection on which file descriptors come.
func NewReceiver(unix *net.UnixConn) *Conn { return &Conn{unix: unix, keep: true} }

// ReadLine returns the next message without its newline; it is valid until the next call. Errors:
// ErrTooLong, io.EOF at the end of the stream, or what the socket says.
func (c *Conn) ReadLine() ([]byte, error) {
	for scanned := 0; ; {
		if i := bytes.IndexByte(c.buf[scanned:], '\n'); i >= 0 {
			line := c.buf[: scanned+i : scanned+i]
			c.buf = c.buf[scanned+i+1:]
			return line, nil
		}
		scanned = len(c.buf)
		if scanned >= MaxLine {
			return nil, ErrTooLong
		}
		if err := c.fill(); err != nil {
			return nil, err
		}
	}
}

func (c *Conn) fill() error {
	chunk := make([]byte, min(4096, MaxLine-len(c.buf)))
	n, err := c.read(chunk)
	c.buf = append(c.buf, chunk[:n]...)
	if n > 0 {
		return nil
	}
	return err
}

func (c *Conn) read(chunk []byte) (int, error) {
	if !c.keep {
		return c.unix.Read(chunk)
	}
	oob := make([]byte, syscall.CmsgSpace(maxFiles*4))
	n, oobn, _, _, err := c.unix.ReadMsgUnix(chunk, oob)
	if err != nil {
		// The counts are negative then.
		return 0, err
	}
	if files, parseErr := parseFiles(oob[:oobn]); parseErr != nil {
		return n, parseErr
	} else if len(c.files)+len(files) <= maxFiles {
		c.files = append(c.files, files...)
	} else {
		closeAll(files)
	}
	return n, nil
}

func parseFiles(oob []byte) ([]*os.File, error) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("read file descriptors: %w", err)
	}
	var files []*os.File
	for i := range messages {
		fds, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			syscall.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

// Take returns the next n file descriptors that came. The caller owns them.
func (c *Conn) Take(n int) ([]*os.File, error) {
	if n < 0 || n > len(c.files) {
		return nil, fmt.Errorf("a message announces %d file descriptors and %d came", n, len(c.files))
	}
	files := c.files[:n:n]
	c.files = c.files[n:]
	return files, nil
}

// Write sends a message with the file descriptors that belong to it.
func (c *Conn) Write(message any, files ...*os.File) error {
	line, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	line = append(line, '\n')
	if len(line) > MaxLine {
		return ErrTooLong
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, file := range files {
			fds[i] = int(file.Fd())
		}
		oob = syscall.UnixRights(fds...)
	}
	// The descriptors ride on the first byte, the rest follows: a socket may take less than all.
	n, _, err := c.unix.WriteMsgUnix(line, oob, nil)
	if err == nil && n < len(line) {
		_, err = c.unix.Write(line[n:])
	}
	return err
}

// SetReadDeadline bounds the reads to come; the zero time lifts the bound.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.unix.SetReadDeadline(t) }

// SetWriteDeadline bounds the writes to come; the zero time lifts the bound.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.unix.SetWriteDeadline(t) }

// Close ends the connection. Descriptors that nobody took are closed.
func (c *Conn) Close() error { return c.unix.Close() }

// CloseFiles closes the descriptors that came and were not taken. It must not run beside ReadLine.
func (c *Conn) CloseFiles() {
	closeAll(c.files)
	c.files = nil
}

func closeAll(files []*os.File) {
	for _, file := range files {
		_ = file.Close()
	}
}
