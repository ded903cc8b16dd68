// Package masterport keeps a TCP port free for the process of rank 0.
//
// A port is reserved when the worker joins, by a socket that is bound and does not listen. It is
// released right before the program starts: a program that knows nothing of Concertina binds the
// port itself, with or without SO_REUSEADDR. For one that joins through an SDK the agent binds it
// anew and hands the listening socket over. Nothing takes the port in between, because it lies
// outside the range from which the kernel gives ports to outgoing connections.
package masterport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const ephemeralRangeFile = "/proc/sys/net/ipv4/ip_local_port_range"

const (
	lowest  = 10000
	highest = 65535
	// roomy is how many ports a range must have to be worth drawing from.
	roomy = 1024
	// tries is how many drawn ports may turn out to be taken.
	tries = 64
)

// Port is a reserved port.
type Port struct {
	number int

	mu sync.Mutex
	fd int
}

// Reserve finds a free port and binds it on every address of the pod.
func Reserve() (*Port, error) {
	text, err := os.ReadFile(ephemeralRangeFile)
	if err != nil {
		text = nil
	}
	from, to := candidates(parseRange(string(text)))
	var last error
	for range tries {
		number := 0
		if to > 0 {
			number = from + rand.IntN(to-from+1)
		}
		port, err := bind(number)
		if err == nil {
			return port, nil
		}
		if last = err; !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return nil, fmt.Errorf("reserve a port for the master address: %w", last)
}

// parseRange reads the kernel's range of ephemeral ports; both are 0 when there is none to read.
func parseRange(text string) (low, high int) {
	fields := strings.Fields(text)
	if len(fields) != 2 {
		return 0, 0
	}
	low, errLow := strconv.Atoi(fields[0])
	high, errHigh := strconv.Atoi(fields[1])
	if errLow != nil || errHigh != nil || low < 1 || low > high || high > highest {
		return 0, 0
	}
	return low, high
}

// candidates is the range to draw from: above the ephemeral ports, where servers of other
// containers are rare, else below them. Without room on either side it is 0 to 0, which leaves
// the choice to the kernel.
func candidates(ephemeralLow, ephemeralHigh int) (from, to int) {
	switch {
	case ephemeralLow == 0:
		return 0, 0
	case highest-ephemeralHigh >= roomy:
		return ephemeralHigh + 1, highest
	case ephemeralLow-lowest >= roomy:
		return lowest, ephemeralLow - 1
	default:
		return 0, 0
	}
}

func bind(number int) (*Port, error) {
	fd, err := bindAny(unix.AF_INET6, &unix.SockaddrInet6{Port: number})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) {
		fd, err = bindAny(unix.AF_INET, &unix.SockaddrInet4{Port: number})
	}
	if err != nil {
		return nil, err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	switch name := name.(type) {
	case *unix.SockaddrInet6:
		number = name.Port
	case *unix.SockaddrInet4:
		number = name.Port
	}
	return &Port{number: number, fd: fd}, nil
}

// bindAny binds without SO_REUSEADDR, so that it fails when anybody else has the port in any way.
func bindAny(family int, address unix.Sockaddr) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if family == unix.AF_INET6 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0); err != nil {
			return -1, errors.Join(os.NewSyscallError("setsockopt", err), unix.Close(fd))
		}
	}
	if err := unix.Bind(fd, address); err != nil {
		return -1, errors.Join(os.NewSyscallError("bind", err), unix.Close(fd))
	}
	return fd, nil
}

// Number is the port's number; it stays the same after Release.
func (p *Port) Number() int { return p.number }

// Release lets anybody bind the port. Releasing twice does nothing.
func (p *Port) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd >= 0 {
		_ = unix.Close(p.fd)
		p.fd = -1
	}
}

// Listen binds a released port on one address and listens there. The error says who to blame when
// somebody else has it.
func Listen(ctx context.Context, address string, port int) (*net.TCPListener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("the master port %d is taken by another process of this pod: %w", port, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on the master port: %w", err)
	}
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("listen on the master port: %T is no TCP listener", listener), listener.Close())
	}
	return tcp, nil
}
