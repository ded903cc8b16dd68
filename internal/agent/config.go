package agent

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/concertina-dev/concertina/internal/agent/completion"
	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/agent/session"
	"github.com/concertina-dev/concertina/internal/agent/socket"
	"github.com/concertina-dev/concertina/internal/score"
	"github.com/concertina-dev/concertina/internal/uploader"
)

// Launch says who starts the processes of a worker.
type Launch string

const (
	// LaunchPerProcess starts the command once for each process.
	LaunchPerProcess Launch = "PerProcess"
	// LaunchPerWorker starts the command once; it starts the processes itself.
	LaunchPerWorker Launch = "PerWorker"
)

// Names of the variables that the operator sets on the training container. Those that the program
// gets are in environment.go.
const (
	EnvNamespace    = "CONCERTINA_NAMESPACE"
	EnvJob          = "CONCERTINA_JOB"
	EnvAttempt      = "CONCERTINA_ATTEMPT"
	EnvPodName      = "CONCERTINA_POD_NAME"
	EnvPodUID       = "CONCERTINA_POD_UID"
	EnvPodIP        = "CONCERTINA_POD_IP"
	EnvLaunch       = "CONCERTINA_LAUNCH"
	EnvProcesses    = "CONCERTINA_PROCESSES"
	EnvRendezvous   = "CONCERTINA_RENDEZVOUS"
	EnvSocket       = "CONCERTINA_SOCKET"
	EnvGraceSeconds = "CONCERTINA_GRACE_SECONDS"
	EnvCheckDevice  = "CONCERTINA_CHECK_DEVICE"

	EnvStrategy           = "CONCERTINA_STRATEGY"
	EnvMemory             = "CONCERTINA_MEMORY"
	EnvSnapshotInterval   = "CONCERTINA_SNAPSHOT_INTERVAL"
	EnvCheckpointSignal   = "CONCERTINA_CHECKPOINT_SIGNAL"
	EnvCheckpointComplete = "CONCERTINA_CHECKPOINT_COMPLETE"
	EnvCheckpointTimeout  = "CONCERTINA_CHECKPOINT_TIMEOUT"
	EnvUploader           = uploader.EnvSocket
	EnvBest               = uploader.EnvBest
)

// Defaults of what need not be set.
const (
	DefaultSocket       = "/concertina/run/agent.sock"
	DefaultTokenFile    = "/var/run/concertina/token"
	DefaultCAFile       = "/var/run/concertina/ca.crt"
	DefaultGraceSeconds = 30
	// IntervalAuto is the interval of snapshots that costs at most 1% of training.
	IntervalAuto = "auto"
	// DefaultCheckpointTimeout bounds the wait for a checkpoint, in seconds.
	DefaultCheckpointTimeout = 60
)

// Config is what one agent is told.
type Config struct {
	Namespace, Job string
	// Attempt is the life of the gang, from 1.
	Attempt int
	// PodName, PodUID and PodIP identify the worker.
	PodName, PodUID, PodIP string
	Launch                 Launch
	// Processes is the number of ranks in this worker, 1 to 64.
	Processes int
	// Rendezvous is the operator's address, host:port.
	Rendezvous string
	// Socket is the path of the unix socket; its directory is made by the agent.
	Socket string
	// TokenFile and CAFile are read for every connection.
	TokenFile, CAFile string
	// Command is the training program with its arguments.
	Command []string
	// Strategy says how programs get from one world to the next.
	Strategy lifecycle.Strategy
	// Snapshots is the folder for snapshots, in the memory volume; empty for none. Interval is how
	// often to take one: "auto", or seconds.
	Snapshots, Interval string
	// Uploader is the socket of the uploader in this pod; empty when the job has no storage.
	Uploader string
	// Best is the metric by which the job keeps its best checkpoints; empty for none.
	Best string
	// Checkpoint is how a program is asked for a checkpoint before it is stopped.
	Checkpoint completion.Request
	// CheckDevice is true when the first programs are to look at their devices.
	CheckDevice bool

	Limits  lifecycle.Limits
	Session session.Timing
	Program socket.Timing
	// LastReport bounds how long the last report may take.
	LastReport time.Duration
	// Drain bounds how long a program that has ended may still have unread messages.
	Drain time.Duration
}

// ConfigFromEnvironment reads the configuration. The error names everything that is wrong.
func ConfigFromEnvironment(getenv func(string) string, tokenFile, caFile string, command []string) (Config, error) {
	env := reader{getenv: getenv}
	config := Config{
		Namespace:   env.text(EnvNamespace),
		Job:         env.text(EnvJob),
		Attempt:     env.number(EnvAttempt, 1, math.MaxInt32),
		PodName:     env.text(EnvPodName),
		PodUID:      env.text(EnvPodUID),
		PodIP:       env.address(EnvPodIP),
		Launch:      env.launch(EnvLaunch),
		Processes:   env.number(EnvProcesses, 1, gate.MaxSlots),
		Rendezvous:  env.text(EnvRendezvous),
		Socket:      env.textOr(EnvSocket, DefaultSocket),
		CheckDevice: getenv(EnvCheckDevice) == "1",
		TokenFile:   tokenFile,
		CAFile:      caFile,
		Command:     command,
		Session:     session.DefaultTiming(),
		Program:     socket.DefaultTiming(),
		LastReport:  2 * time.Second,
		Drain:       100 * time.Millisecond,
	}
	grace := env.numberOr(EnvGraceSeconds, 1, math.MaxInt32, DefaultGraceSeconds)
	config.Limits = lifecycle.DefaultLimits(time.Duration(grace) * time.Second)
	env.worlds(&config)
	if len(command) == 0 || command[0] == "" {
		env.wrong(errors.New("no command to run: agent run -- COMMAND [ARGUMENT...]"))
	}
	return config, errors.Join(env.errs...)
}

// reader collects what is wrong, so that the user sees all of it at once.
type reader struct {
	getenv func(string) string
	errs   []error
}

func (r *reader) wrong(err error) { r.errs = append(r.errs, err) }

func (r *reader) text(name string) string {
	value := r.getenv(name)
	if value == "" {
		r.wrong(fmt.Errorf("%s is not set: the operator sets it on the training container", name))
	}
	return value
}

func (r *reader) textOr(name, otherwise string) string {
	if value := r.getenv(name); value != "" {
		return value
	}
	return otherwise
}

func (r *reader) number(name string, low, high int) int {
	text := r.text(name)
	if text == "" {
		return 0
	}
	value, err := strconv.Atoi(text)
	if err != nil || value < low || value > high {
		r.wrong(fmt.Errorf("%s is %q: a number from %d to %d is wanted", name, text, low, high))
	}
	return value
}

func (r *reader) numberOr(name string, low, high, otherwise int) int {
	if r.getenv(name) == "" {
		return otherwise
	}
	return r.number(name, low, high)
}

// worlds reads what concerns worlds that change.
func (r *reader) worlds(config *Config) {
	switch strategy := r.getenv(EnvStrategy); {
	case strategy == "Restart", strategy == "" && config.Launch == LaunchPerWorker:
		config.Strategy = lifecycle.Restart
	case strategy != "" && strategy != "InPlace":
		r.wrong(fmt.Errorf("%s is %q: InPlace or Restart is wanted", EnvStrategy, strategy))
	}
	if memory := r.getenv(EnvMemory); memory != "" {
		config.Snapshots = filepath.Join(memory, "snapshots")
	}
	config.Uploader = r.getenv(EnvUploader)
	best, err := score.Parse(r.getenv(EnvBest))
	if err != nil {
		r.wrong(fmt.Errorf("%s is %w", EnvBest, err))
	}
	config.Best = best.Metric
	config.Interval = r.textOr(EnvSnapshotInterval, IntervalAuto)
	if seconds, err := strconv.ParseFloat(config.Interval, 64); config.Interval != IntervalAuto &&
		(err != nil || !(seconds > 0) || math.IsInf(seconds, 1)) {
		r.wrong(fmt.Errorf("%s is %q: %s or a number of seconds is wanted", EnvSnapshotInterval, config.Interval, IntervalAuto))
	}
	config.Checkpoint = completion.Request{
		Pattern: r.getenv(EnvCheckpointComplete),
		Timeout: time.Duration(r.numberOr(EnvCheckpointTimeout, 1, math.MaxInt32, DefaultCheckpointTimeout)) * time.Second,
	}
	config.Limits.Save = config.Checkpoint.Timeout
	if name := r.getenv(EnvCheckpointSignal); name != "" {
		if config.Checkpoint.Signal = unix.SignalNum(name); config.Checkpoint.Signal == 0 {
			r.wrong(fmt.Errorf("%s is %q: the name of a signal such as SIGUSR2 is wanted", EnvCheckpointSignal, name))
		}
	}
}

func (r *reader) address(name string) string {
	text := r.text(name)
	if text == "" {
		return ""
	}
	if _, err := netip.ParseAddr(text); err != nil {
		r.wrong(fmt.Errorf("%s is %q: an IP address is wanted", name, text))
	}
	return text
}

func (r *reader) launch(name string) Launch {
	switch launch := Launch(r.text(name)); launch {
	case "", LaunchPerProcess, LaunchPerWorker:
		return launch
	default:
		r.wrong(fmt.Errorf("%s is %q: %s or %s is wanted", name, launch, LaunchPerProcess, LaunchPerWorker))
		return launch
	}
}

// Programs is how many programs a start has.
func (c Config) Programs() int {
	if c.Launch == LaunchPerWorker {
		return 1
	}
	return c.Processes
}
