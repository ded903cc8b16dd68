package rendezvous

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous/server"

	product "github.com/concertina-dev/concertina/internal/rendezvous"
)

const (
	namespace = "bench"
	// workersPerNode is how many workers share a node.
	workersPerNode = 8
	// heartbeat is the default of spec.failure.heartbeatTimeout.
	heartbeat = 5 * time.Second
)

func jobName(job int) string { return fmt.Sprintf("job-%05d", job) }

func podName(job, member int) string { return fmt.Sprintf("%s-%05d", jobName(job), member) }

// None is nothing to say.
type None struct{}

// Operator is the operator's process: the server as it ships, and what stands for the controller.
type Operator struct {
	server *server.Server
	config operatorConfig
	cancel context.CancelFunc
}

// operatorConfig is what the process is started with.
type operatorConfig struct {
	Address, Records, Certificate, Key string
	Jobs, Members, Beside              int
	Profile                            string
}

// serveOperator is the operator's process.
func serveOperator() error {
	config, err := configured[operatorConfig]()
	if err != nil {
		return err
	}
	if config.Profile != "" {
		file, err := os.Create(config.Profile)
		if err != nil {
			return fmt.Errorf("write a profile: %w", err)
		}
		defer func() { _ = file.Close() }()
		if err := pprof.StartCPUProfile(file); err != nil {
			return fmt.Errorf("write a profile: %w", err)
		}
		defer pprof.StopCPUProfile()
	}
	return answer("Operator", &Operator{config: config})
}

// Start has the operator expect its jobs and listen.
func (o *Operator) Start(None, *None) error {
	certificate, err := tls.LoadX509KeyPair(o.config.Certificate, o.config.Key)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp4", o.config.Address)
	if err != nil {
		return err
	}
	o.server = server.NewServer(server.Options{
		Listener: listener, TLS: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13},
		Authenticator: believer{}, Recorder: newRecorder(o.config.Records),
	})
	ctx, cancel := context.WithCancel(context.Background())
	o.cancel = cancel
	for job := range o.config.Jobs {
		o.server.Expect(product.JobKey{Namespace: namespace, Name: jobName(job)}, o.gang(job, o.config.Members, 0))
	}
	if o.config.Beside > 0 {
		o.server.Expect(product.JobKey{Namespace: namespace, Name: jobName(o.config.Jobs)}, o.gang(o.config.Jobs, o.config.Beside, 0))
	}
	go o.control(ctx)
	go func() {
		if err := o.server.Start(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
	}()
	return nil
}

// control looks at jobs that have changed, as the controller does.
func (o *Operator) control(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case key := <-o.server.Changed():
			_ = o.server.Observe(key)
		}
	}
}

// gang is what a job is to be made of, when so many of its members leave: the last ones.
func (o *Operator) gang(job, count, leaving int) product.Gang {
	members := make([]product.Member, count)
	for i := range members {
		members[i] = product.Member{
			UID: podName(job, i), Name: podName(job, i), Ordinal: int32(i), Node: fmt.Sprintf("node-%05d", (job*o.config.Members+i)/workersPerNode),
		}
		if i >= len(members)-leaving {
			members[i].Leaving = product.ReasonScaledDown
		}
	}
	size := int32(len(members) - leaving)
	return product.Gang{
		JobUID: jobName(job), Attempt: 1, Members: members, Minimum: size, Target: size, ProcessesPerWorker: 1,
		HeartbeatTimeout: heartbeat, BarrierTimeout: time.Minute,
	}
}

// Shrink has so many members of each job leave.
func (o *Operator) Shrink(leaving int, _ *None) error {
	for job := range o.config.Jobs {
		o.server.Expect(product.JobKey{Namespace: namespace, Name: jobName(job)}, o.gang(job, o.config.Members, leaving))
	}
	return nil
}

// Usage is what the process has used. With profiles there is one of its memory too, of the last time that it was asked.
func (o *Operator) Usage(_ None, usage *Usage) (err error) {
	if *usage, err = used(); err != nil || o.config.Profile == "" {
		return err
	}
	file, err := os.Create(strings.TrimSuffix(o.config.Profile, ".pprof") + "-heap.pprof")
	if err != nil {
		return fmt.Errorf("write a profile: %w", err)
	}
	return errors.Join(pprof.Lookup("heap").WriteTo(file, 0), file.Close())
}

// Situation describes the jobs that are not in a world, for an error.
func (o *Operator) Situation(_ None, text *string) error {
	for job := range o.config.Jobs {
		seen := o.server.Observe(product.JobKey{Namespace: namespace, Name: jobName(job)})
		connected, in := 0, 0
		for _, member := range seen.Members {
			if member.Connected {
				connected++
			}
			if member.InWorld {
				in++
			}
		}
		*text = fmt.Sprintf("%s: %s, round %d, %d connected, %d in it, adopting %v, %s", jobName(job), seen.Phase, seen.Round, connected, in, seen.Adopting, seen.Why)
		if connected < len(seen.Members) {
			break
		}
	}
	return nil
}

// believer takes a token for the uid of the pod that it belongs to: what tokens cost is not measured.
type believer struct{}

// Claim implements Authenticator.
func (believer) Claim(token string) (product.Identity, error) {
	return product.Identity{Namespace: namespace, PodName: token, PodUID: token, Expires: time.Now().Add(time.Hour)}, nil
}

// Authenticate implements Authenticator.
func (b believer) Authenticate(_ context.Context, token string) (product.Identity, error) {
	return b.Claim(token)
}
