package masterport

import (
	"context"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCandidatesLieOutsideTheEphemeralRange(t *testing.T) {
	for name, row := range map[string]struct {
		text     string
		from, to int
	}{
		"Linux's default": {"32768\t60999\n", 61000, 65535},
		"all above":       {"15000 65535", 10000, 14999},
		"no room above":   {"32768 65000", 10000, 32767},
		"no room at all":  {"1024 65535", 0, 0},
		"unreadable":      {"", 0, 0},
		"nonsense":        {"70000 80000", 0, 0},
		"turned around":   {"60999 32768", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if from, to := candidates(parseRange(row.text)); from != row.from || to != row.to {
				t.Errorf("got %d to %d, want %d to %d", from, to, row.from, row.to)
			}
		})
	}
}

func TestAReservedPortIsFreeForTheProgramAndForNobodyElse(t *testing.T) {
	port, err := Reserve()
	if err != nil {
		t.Fatal(err)
	}
	defer port.Release()
	text, _ := os.ReadFile(ephemeralRangeFile)
	low, high := parseRange(string(text))
	if n := port.Number(); low > 0 && n >= low && n <= high {
		t.Errorf("port %d lies between the ephemeral ports %d and %d", n, low, high)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port.Number()))
	if l, err := net.Listen("tcp", address); err == nil {
		_ = l.Close()
		t.Error("somebody could listen on a reserved port")
	}
	port.Release()
	port.Release()
	// A program that does not know SO_REUSEADDR, and one that listens on every address.
	plain(t, port.Number())
	l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port.Number())))
	if err != nil {
		t.Fatalf("the program cannot listen: %v", err)
	}
	_ = l.Close()
}

func plain(t *testing.T, port int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port}); err != nil {
		t.Errorf("bind without SO_REUSEADDR: %v", err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		t.Errorf("listen without SO_REUSEADDR: %v", err)
	}
}

func TestListenSaysWhoIsInTheWay(t *testing.T) {
	port, err := Reserve()
	if err != nil {
		t.Fatal(err)
	}
	port.Release()
	first, err := Listen(context.Background(), "127.0.0.1", port.Number())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	_, err = Listen(context.Background(), "127.0.0.1", port.Number())
	if err == nil || !strings.Contains(err.Error(), "taken by another process") {
		t.Errorf("got %v", err)
	}
	if _, err := Listen(context.Background(), "192.0.2.1", port.Number()); err == nil {
		t.Error("listened on an address of another machine")
	}
}
