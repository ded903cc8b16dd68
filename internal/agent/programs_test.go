package agent_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/concertina-dev/concertina/pkg/elastic"
)

// beProgram is a training program. They wait long rather than for ever: a test that fails leaves
// nothing behind.
func beProgram(role string) int {
	localRank := os.Getenv("LOCAL_RANK")
	switch role {
	case "environment":
		write("environment"+localRank, strings.Join(os.Environ(), "\n"))
	case "exit":
		// One exit code for each local rank.
		rank, _ := strconv.Atoi(localRank)
		code, _ := strconv.Atoi(os.Args[1+rank])
		return code
	case "die":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		wait(nil)
	case "sleep":
		write("pid"+localRank, strconv.Itoa(os.Getpid()))
		wait(nil)
	case "signals":
		return signals()
	case "stacks":
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.Signal(40))
		write("pid"+localRank, strconv.Itoa(os.Getpid()))
		wait(asked)
		fmt.Fprintln(os.Stderr, "the stacks of all threads of "+localRank)
		wait(nil)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		write("pid"+localRank, strconv.Itoa(os.Getpid()))
		wait(nil)
	case "fail-first":
		if localRank == "0" {
			return 7
		}
		wait(nil)
	case "orphans":
		return orphans()
	case "serve":
		return serve()
	case "elastic":
		return train()
	case "fault":
		return fault()
	case "environment-sleep":
		write("environment"+localRank, strings.Join(os.Environ(), "\n"))
		wait(nil)
	case "counts":
		return counts()
	case "checkpoints":
		return checkpoints()
	case "fails-once":
		if os.Getenv("CONCERTINA_ROUND") == "1" {
			return 4
		}
	case "leaves":
		return leaves()
	case "rounds":
		looks := ""
		if os.Getenv("CONCERTINA_CHECK_DEVICE") == "1" {
			looks = " looks"
		}
		addLine("rounds", os.Getenv("CONCERTINA_ROUND")+looks)
		if os.Getenv("CONCERTINA_ROUND") == "1" {
			wait(nil)
		}
	case "launcher":
		return launch()
	case "output":
		fmt.Print("to stdout, no newline")
		fmt.Fprint(os.Stderr, "\nto stderr\n")
	default:
		return 120
	}
	return 0
}

func directory() string { return os.Getenv("TEST_DIRECTORY") }

// write makes a file whole: it is renamed into place.
func write(name, text string) {
	path := filepath.Join(directory(), name)
	if err := os.WriteFile(path+".part", []byte(text+"\n"), 0o600); err != nil {
		panic(err)
	}
	if err := os.Rename(path+".part", path); err != nil {
		panic(err)
	}
}

func addLine(name, text string) {
	file, err := os.OpenFile(filepath.Join(directory(), name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	_, _ = file.WriteString(text + "\n")
	_ = file.Close()
}

func wait(stop <-chan os.Signal) {
	select {
	case <-stop:
	case <-time.After(time.Minute):
	}
}

// signals notes every signal, and ends with 5 at SIGTERM.
func signals() int {
	incoming := make(chan os.Signal, 10)
	signal.Notify(incoming, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH)
	write("ready", "ready")
	for {
		select {
		case sig := <-incoming:
			addLine("signals", sig.String())
			if sig == syscall.SIGTERM {
				write("terminated", "yes")
				return 5
			}
		case <-time.After(time.Minute):
			return 121
		}
	}
}

// orphans leaves a grandchild that ends soon, one that would live on, and one in a session of its
// own; then it waits to be told to end.
func orphans() int {
	script := `(sh -c 'echo $$ > "$TEST_DIRECTORY/short"' &)
		(sh -c 'echo $$ > "$TEST_DIRECTORY/long"; exec sleep 60' &)
		(setsid sh -c 'echo $$ > "$TEST_DIRECTORY/away"; exec sleep 60' &)`
	if err := exec.Command("sh", "-c", script).Run(); err != nil {
		return 122
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGUSR1)
	write("ready", "ready")
	wait(stop)
	return 0
}

// checkpoints writes a checkpoint when SIGUSR2 asks for one, a folder for each round.
func checkpoints() int {
	asked := signalled(syscall.SIGUSR2)
	write("ready", "ready")
	wait(asked)
	folder := filepath.Join(os.Getenv("AGENT_TEST_SAVE"), os.Getenv("CONCERTINA_ROUND"))
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return 123
	}
	name := filepath.Join(folder, ".metadata")
	if err := os.WriteFile(name+".part", []byte("complete"), 0o600); err != nil {
		return 123
	}
	if err := os.Rename(name+".part", name); err != nil {
		return 123
	}
	wait(nil)
	return 0
}

// serve is an unmodified program of rank 0: it listens at the master port itself.
func serve() int {
	listener, err := net.Listen("tcp", net.JoinHostPort(os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT")))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_ = listener.Close()
	return 0
}

func signalled(sig syscall.Signal) <-chan os.Signal {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, sig)
	return stop
}

var options = elastic.Options{Samples: 10, Epochs: 1, GlobalBatch: 4, Seed: 1}
