package rendezvous

import (
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"time"

	"github.com/concertina-dev/concertina/internal/plain"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

const (
	protocolVersion = 2

	maxMessageBytes = 64 << 10
	maxNameBytes    = 253
	maxUIDBytes     = 128
	maxProcesses    = 64
	maxMetrics      = 8
	maxFaultBytes   = 16 << 10
	maxSnapshots    = 8
	maxErrorBytes   = 16 << 10
)

var (
	objectName   = regexp.MustCompile(`^[A-Za-z0-9.-]+$`)
	metricName   = regexp.MustCompile(`^[A-Za-z0-9_]{1,32}$`)
	sha256Digest = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// hello is how an agent introduces itself.
type hello struct {
	job      JobKey
	attempt  int32
	podName  string
	podUID   string
	address  netip.Addr
	endpoint endpoint
	serves   server
}

func malformed(format string, args ...any) *refusal {
	return &refusal{refusedNonsense, "malformed report: " + fmt.Sprintf(format, args...)}
}

// readHello takes an agent's introduction out of its first report.
func readHello(r *rendezvousv1.Report) (hello, *refusal) {
	h := r.GetHello()
	if h == nil {
		return hello{}, malformed("the first report of a session has no hello")
	}
	if h.GetProtocol() != protocolVersion {
		return hello{}, &refusal{refusedVersion, fmt.Sprintf(
			"the agent speaks protocol %d and this operator speaks %d: start the job anew with an agent of this operator's version",
			h.GetProtocol(), protocolVersion)}
	}
	for _, field := range []struct {
		name, value string
		max         int
	}{
		{"namespace", h.GetNamespace(), maxNameBytes},
		{"job", h.GetJob(), maxNameBytes},
		{"pod_name", h.GetPodName(), maxNameBytes},
		{"pod_uid", h.GetPodUid(), maxUIDBytes},
	} {
		if field.value == "" || len(field.value) > field.max {
			return hello{}, malformed("%s has %d bytes, it must have 1 to %d", field.name, len(field.value), field.max)
		}
		if !objectName.MatchString(field.value) {
			return hello{}, malformed("%s %.64q has other characters than a-z, A-Z, 0-9, - and .", field.name, field.value)
		}
	}
	if h.GetAttempt() < 1 {
		return hello{}, malformed("attempt is %d, it must be at least 1", h.GetAttempt())
	}
	address, err := netip.ParseAddr(h.GetAddress())
	if err != nil || address.Zone() != "" || address.IsUnspecified() || address.IsMulticast() {
		return hello{}, malformed("address %.64q is not the IP address of a host", h.GetAddress())
	}
	if port := h.GetMasterPort(); port < 1 || port > math.MaxUint16 {
		return hello{}, malformed("master_port is %d, it must lie between 1 and %d", port, math.MaxUint16)
	}
	serves := server{port: h.GetSnapshotPort()}
	switch {
	case serves.port > math.MaxUint16:
		return hello{}, malformed("snapshot_port is %d, it must be at most %d", serves.port, math.MaxUint16)
	case serves.port > 0 && len(h.GetSnapshotCertificate()) != len(serves.certificate):
		return hello{}, malformed("snapshot_certificate has %d bytes, it must have %d",
			len(h.GetSnapshotCertificate()), len(serves.certificate))
	case serves.port > 0:
		copy(serves.certificate[:], h.GetSnapshotCertificate())
	}
	return hello{
		job:      JobKey{Namespace: h.GetNamespace(), Name: h.GetJob()},
		attempt:  h.GetAttempt(),
		podName:  h.GetPodName(),
		podUID:   h.GetPodUid(),
		address:  address.Unmap(),
		endpoint: endpoint{address.Unmap().String(), h.GetMasterPort()},
		serves:   serves,
	}, nil
}

// readReport takes the state out of a report. It refuses what no agent sends.
func readReport(r *rendezvousv1.Report) (report, *refusal) {
	read := report{
		term: r.GetTerm(), round: r.GetRound(), digest: r.GetMembersDigest(),
		workerRank: r.GetWorkerRank(), terminating: r.GetTerminating(),
		standby: r.GetStandby(), out: r.GetOut(), snapshotError: plain.Text(r.GetSnapshotError()),
		masterPort: r.GetMasterPort(), refused: r.GetRefused(), begun: r.PauseNanos != nil,
		hold: r.GetHold(), before: r.GetBefore(),
	}
	if nanos := r.GetPauseNanos(); nanos <= uint64(maxPause) {
		read.pause = time.Duration(nanos) // and otherwise it is not known: programs may say anything
	}
	switch {
	case read.masterPort > math.MaxUint16:
		return report{}, malformed("master_port is %d, it must be at most %d", read.masterPort, math.MaxUint16)
	case read.before > 0 && read.before >= read.round:
		return report{}, malformed("round is %d and before is %d", read.round, read.before)
	case read.term > math.MaxInt64 || read.round > math.MaxInt64:
		return report{}, malformed("term %d, round %d are out of range", read.term, read.round)
	case read.round == 0 && (read.digest != "" || read.workerRank != 0):
		return report{}, malformed("round is 0 and there are members_digest %.64q and worker_rank %d", read.digest, read.workerRank)
	case read.round > 0 && !sha256Digest.MatchString(read.digest):
		return report{}, malformed("members_digest %.64q is not 64 lower-case hex digits", read.digest)
	case read.workerRank >= maxWorkers:
		return report{}, malformed("worker_rank is %d, it must be below %d", read.workerRank, maxWorkers)
	case len(r.GetProcesses()) > maxProcesses:
		return report{}, malformed("%d processes, there may be %d", len(r.GetProcesses()), maxProcesses)
	case read.out && read.round == 0:
		return report{}, malformed("round is 0 and out is set")
	case len(r.GetSnapshotError()) > maxErrorBytes:
		return report{}, malformed("snapshot_error has %d bytes, it may have %d", len(r.GetSnapshotError()), maxErrorBytes)
	}
	var refused *refusal
	if read.snapshots, refused = readSnapshots(r); refused != nil {
		return report{}, refused
	}
	for rank, p := range r.GetProcesses() {
		one, why := readProcess(p)
		if why != "" {
			return report{}, malformed("process %d: %s", rank, why)
		}
		read.processes = append(read.processes, one)
	}
	return read, nil
}

func readSnapshots(r *rendezvousv1.Report) ([]snapshot, *refusal) {
	if n := len(r.GetSnapshots()); n > maxSnapshots {
		return nil, malformed("%d snapshots, there may be %d", n, maxSnapshots)
	}
	var read []snapshot
	for _, s := range r.GetSnapshots() {
		if s.GetRound() < 1 || s.GetRound() > r.GetRound() || s.GetStep() > maxCount || s.GetBytes() > maxCount {
			return nil, malformed("a snapshot of round %d, step %d, %d bytes cannot be in round %d",
				s.GetRound(), s.GetStep(), s.GetBytes(), r.GetRound())
		}
		read = append(read, snapshot{s.GetRound(), s.GetStep(), s.GetBytes(), s.GetChecksum()})
	}
	return read, nil
}

func readProcess(p *rendezvousv1.Process) (process, string) {
	read := process{
		phase: phase(p.GetPhase()), waiting: waiting(p.GetWaiting()), elastic: p.GetElastic(),
		entered: p.GetEntered(), done: p.GetDone(), lastStep: p.GetLastStep(), samples: p.GetSamples(),
		barrier: p.GetBarrierAttempt(), stop: p.GetStop(),
		clean: p.CleanStep != nil, cleanStep: p.GetCleanStep(),
		fault: plain.Text(p.GetFault().GetMessage()), exited: p.GetExit() != nil, exitCode: p.GetExit().GetCode(),
	}
	if _, known := rendezvousv1.Waiting_name[int32(p.GetWaiting())]; !known {
		return process{}, fmt.Sprintf("waiting %d is not known", p.GetWaiting())
	}
	if _, known := rendezvousv1.Phase_name[int32(p.GetPhase())]; !known {
		return process{}, fmt.Sprintf("phase %d is not known", p.GetPhase())
	}
	for _, count := range []uint64{read.entered, read.done, read.lastStep, read.samples, read.barrier, read.stop, read.cleanStep, p.GetFault().GetStep()} {
		if count > maxCount {
			return process{}, fmt.Sprintf("a count of %d is out of range", count)
		}
	}
	if n := len(p.GetFault().GetMessage()); n > maxFaultBytes {
		return process{}, fmt.Sprintf("the fault has %d bytes, it may have %d", n, maxFaultBytes)
	}
	if read.exitCode < 0 || read.exitCode > 255 {
		return process{}, fmt.Sprintf("exit code %d is out of range", read.exitCode)
	}
	if len(p.GetMetrics()) > maxMetrics {
		return process{}, fmt.Sprintf("%d metrics, there may be %d", len(p.GetMetrics()), maxMetrics)
	}
	for _, metric := range p.GetMetrics() {
		if !metricName.MatchString(metric.GetName()) {
			return process{}, fmt.Sprintf("metric name %.64q has more than 32 letters, digits and _, or others", metric.GetName())
		}
		if math.IsNaN(metric.GetValue()) || math.IsInf(metric.GetValue(), 0) {
			return process{}, fmt.Sprintf("metric %s is %v, it must be finite", metric.GetName(), metric.GetValue())
		}
		read.metrics = append(read.metrics, Metric{Name: metric.GetName(), Value: metric.GetValue()})
	}
	return read, ""
}

// directiveMessage is a directive as it travels.
func directiveMessage(d *directive, sequence uint64) *rendezvousv1.Directive {
	m := &rendezvousv1.Directive{
		Term: d.term, Round: d.round, Released: d.released, Sequence: sequence,
		Raise: d.raise, Finish: d.finish, Standby: d.standby, TicketKey: d.key,
		BeatMillis: uint32(d.beat.Milliseconds()),
		Hold:       d.hold,
	}
	if d.world != nil {
		m.World = placeMessage(d.world)
	}
	if d.barrier != nil {
		m.Barrier = &rendezvousv1.Barrier{Attempt: d.barrier.attempt, Step: d.barrier.step, Save: d.barrier.save}
	}
	if d.abort != nil {
		m.Abort = &rendezvousv1.Abort{Reason: d.abort.reason, Planned: d.abort.planned, SaveStep: d.abort.save}
	}
	if p := d.prefetch; p != nil {
		m.Prefetch = &rendezvousv1.Prefetch{Snapshot: snapshotMessage(&p.snapshot), Holders: holderMessages(p.holders)}
	}
	return m
}

func placeMessage(p *place) *rendezvousv1.World {
	m := &rendezvousv1.World{
		MembersDigest: p.digest, FromStep: p.fromStep,
		WorkerRank: uint32(p.workerRank), Workers: uint32(p.workers), ProcessesPerWorker: uint32(p.processes),
		MasterAddress: p.master.address, MasterPort: p.master.port,
		Parent: p.parent, Restore: p.restore, Writer: p.writer,
	}
	if p.snapshot != nil {
		m.Snapshot = snapshotMessage(p.snapshot)
	}
	m.Holders = holderMessages(p.holders)
	return m
}

func snapshotMessage(s *snapshot) *rendezvousv1.Snapshot {
	return &rendezvousv1.Snapshot{Round: s.round, Step: s.step, Bytes: s.bytes, Checksum: s.checksum}
}

func holderMessages(holders []supplier) []*rendezvousv1.Holder {
	var messages []*rendezvousv1.Holder
	for i := range holders {
		h := &holders[i]
		messages = append(messages, &rendezvousv1.Holder{Address: h.address, Port: h.port, Certificate: h.certificate[:], Ticket: h.ticket})
	}
	return messages
}
