package rendezvous

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/concertina-dev/concertina/hack/bench/apiserver"
)

// A process of a trial finds its role and what it needs in its environment, and answers calls on its standard
// input and output until that ends.
const (
	roleVariable   = "CONCERTINA_BENCH_ROLE"
	configVariable = "CONCERTINA_BENCH_CONFIG"
	roleOperator   = "operator"
	roleAgents     = "agents"
	roleBare       = "bare"
)

// trialConfig is the size of a trial.
type trialConfig struct {
	Jobs, Members, Rate int
	// Beside is how many members one more job has, which is small; 0 for none.
	Beside        int
	Profile, Name string
	Flood         bool
	// Bare says that nothing is behind the connections of the agents.
	Bare bool
}

// trial is one operator with its agents.
type trial struct {
	trialConfig
	ctx      context.Context
	dir      string
	address  string
	records  *records
	operator *child
	agents   *child
	// beside are the agents of the small job: those of the large one do not keep them from their processor.
	beside *child
	lives  int
}

// start starts an operator and its agents.
func start(ctx context.Context, config trialConfig) (_ *trial, err error) {
	t := &trial{trialConfig: config, ctx: ctx}
	if t.dir, err = os.MkdirTemp("", "concertina-bench-"); err != nil {
		return nil, fmt.Errorf("make a folder for the trial: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.stop())
		}
	}()
	if err := t.files(); err != nil {
		return nil, err
	}
	if t.records, err = keepRecords(filepath.Join(t.dir, "records")); err != nil {
		return nil, err
	}
	if t.address, err = apiserver.FreeAddress(); err != nil {
		return nil, err
	}
	if err := t.startOperator(); err != nil {
		return nil, err
	}
	agents := agentsConfig{
		Address: t.address, CA: filepath.Join(t.dir, "tls.crt"), Tokens: filepath.Join(t.dir, "tokens"),
		Jobs: t.Jobs, Members: t.Members, Rate: t.Rate, Beside: t.Beside, Flood: t.Flood,
	}
	if t.agents, err = startChild(ctx, roleAgents, agents); err != nil {
		return t, err
	}
	if t.Beside > 0 {
		t.beside, err = startChild(ctx, roleAgents, agents)
	}
	return t, err
}

func (t *trial) startOperator() (err error) {
	config := operatorConfig{
		Address: t.address, Records: filepath.Join(t.dir, "records"),
		Certificate: filepath.Join(t.dir, "tls.crt"), Key: filepath.Join(t.dir, "tls.key"), Jobs: t.Jobs, Members: t.Members, Beside: t.Beside,
	}
	if t.lives++; t.Profile != "" {
		config.Profile = filepath.Join(t.Profile, fmt.Sprintf("%s-%d.pprof", t.Name, t.lives))
	}
	role := roleOperator
	if t.Bare {
		role = roleBare
	}
	if t.operator, err = startChild(t.ctx, role, config); err != nil {
		return err
	}
	return t.operator.Call("Operator.Start", None{}, &None{})
}

// stop ends the processes and removes what they have written.
func (t *trial) stop() error {
	if t.operator != nil && t.Profile != "" {
		t.operator.finish()
	}
	for _, c := range []*child{t.operator, t.agents, t.beside} {
		if c != nil {
			c.kill()
		}
	}
	var err error
	if t.records != nil {
		err = t.records.server.Close()
	}
	return errors.Join(err, os.RemoveAll(t.dir))
}

func (t *trial) operatorUsage() (usage Usage, err error) {
	return usage, t.operator.Call("Operator.Usage", None{}, &usage)
}

// usage is what the operator and the agents have used.
func (t *trial) usage() (operator, agents Usage, err error) {
	if operator, err = t.operatorUsage(); err != nil {
		return operator, agents, err
	}
	return operator, agents, t.agents.Call("Agents.Usage", None{}, &agents)
}

// ranked waits until all members are in a world.
func (t *trial) ranked() (ranked Times, err error) {
	if err := t.agents.Call("Agents.Ranked", None{}, &ranked); err != nil {
		return ranked, t.explain(err)
	}
	return ranked, nil
}

// ask has the members report changes for a while, and says how long their answers took.
func (t *trial) ask(d time.Duration, flood bool) (asked Asked, err error) {
	return asked, t.agents.Call("Agents.Ask", AskFor{For: d, Flood: flood}, &asked)
}

// shrink has one in a hundred members leave each job, at least one.
func (t *trial) shrink() (changed Times, err error) {
	leaving := max(t.Members/100, 1)
	if err := t.operator.Call("Operator.Shrink", leaving, &None{}); err != nil {
		return changed, err
	}
	if err := t.agents.Call("Agents.Changed", leaving, &changed); err != nil {
		return changed, t.explain(err)
	}
	return changed, nil
}

// explain adds to an error what the operator says of the jobs.
func (t *trial) explain(err error) error {
	var situation string
	if failed := t.operator.Call("Operator.Situation", None{}, &situation); failed != nil {
		situation = failed.Error()
	}
	return fmt.Errorf("%w; %s", err, situation)
}

// succession is how long after the successor listens each agent has obeyed it, and how many streams the agents have
// lost until then, by cause.
type succession struct {
	adopted []time.Duration
	lost    map[string]int
}

// succeed kills the operator and starts another one.
func (t *trial) succeed() (s succession, err error) {
	var term uint64
	if err := errors.Join(t.agents.Call("Agents.Term", None{}, &term), t.agents.Call("Agents.ForgetLosses", None{}, &None{})); err != nil {
		return s, err
	}
	if t.Profile != "" {
		t.operator.finish()
	}
	t.operator.kill()
	if err := t.startOperator(); err != nil {
		return s, err
	}
	listens := time.Now()
	var heard Adopted
	if err := t.agents.Call("Agents.Adopted", term, &heard); err != nil {
		return s, t.explain(err)
	}
	for _, at := range heard.At {
		s.adopted = append(s.adopted, at.Sub(listens))
	}
	s.lost = heard.Lost
	return s, nil
}

// files makes a certificate, and a token for each pod.
func (t *trial) files() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour * 24), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return fmt.Errorf("make a certificate: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("write a key: %w", err)
	}
	errs := []error{
		os.WriteFile(filepath.Join(t.dir, "tls.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), 0o600),
		os.WriteFile(filepath.Join(t.dir, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600),
		os.Mkdir(filepath.Join(t.dir, "tokens"), 0o700),
	}
	for job := range t.Jobs {
		for i := range t.Members {
			errs = append(errs, os.WriteFile(filepath.Join(t.dir, "tokens", podName(job, i)), []byte(podName(job, i)), 0o600))
		}
	}
	for i := range t.Beside {
		errs = append(errs, os.WriteFile(filepath.Join(t.dir, "tokens", podName(t.Jobs, i)), []byte(podName(t.Jobs, i)), 0o600))
	}
	return errors.Join(errs...)
}

// child is a process of the trial, which answers calls.
type child struct {
	*rpc.Client
	cmd *exec.Cmd
}

// startChild starts this program once more, in a role.
func startChild(ctx context.Context, role string, config any) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), roleVariable+"="+role, configVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	// An interrupt from the keyboard is for us: we end the process in our order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the %s: %w", role, err)
	}
	return &child{jsonrpc.NewClient(pipe{out, in}), cmd}, nil
}

// Call asks the process, and does not wait for ever.
func (c *child) Call(method string, args, reply any) error {
	call := c.Go(method, args, reply, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
		return call.Error
	case <-time.After(2 * patience):
		return fmt.Errorf("no answer to %s within %s", method, 2*patience)
	}
}

// kill ends the process at once.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.Close()
	_ = c.cmd.Wait()
}

// finish ends the process in its own time, up to patience.
func (c *child) finish() {
	late := time.AfterFunc(patience, func() { _ = c.cmd.Process.Kill() })
	defer late.Stop()
	_ = c.Close()
	_ = c.cmd.Wait()
}

// pipe is the standard input and output of a process.
type pipe struct {
	io.Reader
	io.WriteCloser
}

// configured is what this process was started with.
func configured[T any]() (config T, err error) {
	if err := json.Unmarshal([]byte(os.Getenv(configVariable)), &config); err != nil {
		return config, fmt.Errorf("read %s: %w", configVariable, err)
	}
	return config, nil
}

// answer answers calls until the standard input ends.
func answer(name string, receiver any) error {
	server := rpc.NewServer()
	if err := server.RegisterName(name, receiver); err != nil {
		return err
	}
	server.ServeCodec(jsonrpc.NewServerCodec(pipe{os.Stdin, os.Stdout}))
	return nil
}
