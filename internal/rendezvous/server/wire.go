package server

import (
	"crypto/sha256"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"

	"github.com/concertina-dev/concertina/internal/plain"
	"github.com/concertina-dev/concertina/internal/release"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
	"github.com/concertina-dev/concertina/internal/share"
)

const (
	protocolVersion = release.Protocol

	maxNameBytes  = 253
	maxUIDBytes   = 128
	maxProcesses  = 64
	maxMetrics    = 8
	maxFaultBytes = 16 << 10
	maxSnapshots  = 256
	maxErrorBytes = 16 << 10
	maxPathBytes  = 1 << 10
	maxUnreached  = 32
	// maxReasonBytes is how much of why a world is left its members are told.
	maxReasonBytes = 4 << 10
)

var objectName = regexp.MustCompile(`^[A-Za-z0-9.-]+$`)

// isDigest says whether this is a SHA-256 in lower-case hex digits. Like isMetricName it is asked of each report, and
// a regular expression takes a quarter of what a report costs here.
func isDigest(s string) bool {
	return len(s) == 2*sha256.Size && consistsOf(s, func(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' })
}

// isMetricName says whether this has 1 to 32 letters, digits and _.
func isMetricName(s string) bool {
	return 1 <= len(s) && len(s) <= 32 && consistsOf(s, func(c byte) bool {
		return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || c == '_'
	})
}

func consistsOf(s string, of func(byte) bool) bool {
	for i := range len(s) {
		if !of(s[i]) {
			return false
		}
	}
	return true
}

// hello is how an agent introduces itself.
type hello struct {
	job      rendezvous.JobKey
	attempt  int32
	podName  string
	podUID   string
	address  netip.Addr
	endpoint rendezvous.Endpoint
	serves   rendezvous.Server
	// parts says whether it knows parts of snapshots.
	parts bool
	// puts says whether it puts parts into the storage one by one.
	puts bool
}

func malformed(format string, args ...any) *rendezvous.Refusal {
	return &rendezvous.Refusal{Kind: rendezvous.RefusedNonsense, Message: "malformed report: " + fmt.Sprintf(format, args...)}
}

// readHello takes an agent's introduction out of its first report.
func readHello(r *rendezvousv1.Report) (hello, *rendezvous.Refusal) {
	h := r.GetHello()
	if h == nil {
		return hello{}, malformed("the first report of a session has no hello")
	}
	if h.GetProtocol() != protocolVersion {
		return hello{}, &rendezvous.Refusal{Kind: rendezvous.RefusedVersion, Message: fmt.Sprintf(
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
	serves := rendezvous.Server{Port: h.GetSnapshotPort()}
	switch {
	case serves.Port > math.MaxUint16:
		return hello{}, malformed("snapshot_port is %d, it must be at most %d", serves.Port, math.MaxUint16)
	case serves.Port > 0 && len(h.GetSnapshotCertificate()) != len(serves.Certificate):
		return hello{}, malformed("snapshot_certificate has %d bytes, it must have %d",
			len(h.GetSnapshotCertificate()), len(serves.Certificate))
	case serves.Port > 0:
		copy(serves.Certificate[:], h.GetSnapshotCertificate())
	}
	return hello{
		job:      rendezvous.JobKey{Namespace: h.GetNamespace(), Name: h.GetJob()},
		attempt:  h.GetAttempt(),
		podName:  h.GetPodName(),
		podUID:   h.GetPodUid(),
		address:  address.Unmap(),
		endpoint: rendezvous.Endpoint{Address: address.Unmap().String(), Port: h.GetMasterPort()},
		serves:   serves,
		parts:    h.GetParts(),
		puts:     h.GetPuts(),
	}, nil
}

// readReport takes the state out of a report. It refuses what no agent sends.
func readReport(r *rendezvousv1.Report) (rendezvous.Report, *rendezvous.Refusal) {
	read := rendezvous.Report{
		Term: r.GetTerm(), Round: r.GetRound(), Digest: r.GetMembersDigest(),
		WorkerRank: r.GetWorkerRank(), Terminating: r.GetTerminating(),
		Standby: r.GetStandby(), Out: r.GetOut(), SnapshotError: plain.Text(r.GetSnapshotError()),
		MasterPort: r.GetMasterPort(), Refused: r.GetRefused(), Begun: r.PauseNanos != nil,
		Hold: r.GetHold(), Before: r.GetBefore(), Stays: r.GetStays(), Supplied: r.GetSupplied(), HandsOver: r.GetHandsOver(), Handover: r.GetHandover(), Restarts: r.GetRestarts(),
		Failure: rendezvous.Failure{
			Round: r.GetFailure().GetRound(), Code: r.GetFailure().GetCode(), Killed: r.GetFailure().GetKilled(),
			Message: plain.Text(r.GetFailure().GetMessage()),
		},
	}
	// Programs may say anything: what cannot be is cut, and no reason to end a session.
	read.Size = share.Size{
		State: r.GetStateSize().GetState(), Own: r.GetStateSize().GetOwn(),
		Shards: r.GetStateSize().GetShards(), Written: r.GetStateSize().GetWritten(),
	}.Bounded()
	read.Pause, read.StepTime = duration(r.GetPauseNanos()), duration(r.GetStepNanos())
	switch {
	case read.MasterPort > math.MaxUint16:
		return rendezvous.Report{}, malformed("master_port is %d, it must be at most %d", read.MasterPort, math.MaxUint16)
	case read.Before > 0 && read.Before >= read.Round:
		return rendezvous.Report{}, malformed("round is %d and before is %d", read.Round, read.Before)
	case read.Term > math.MaxInt64 || read.Round > math.MaxInt64:
		return rendezvous.Report{}, malformed("term %d, round %d are out of range", read.Term, read.Round)
	case read.Round == 0 && (read.Digest != "" || read.WorkerRank != 0):
		return rendezvous.Report{}, malformed("round is 0 and there are members_digest %.64q and worker_rank %d", read.Digest, read.WorkerRank)
	case read.Round > 0 && !isDigest(read.Digest):
		return rendezvous.Report{}, malformed("members_digest %.64q is not 64 lower-case hex digits", read.Digest)
	case read.WorkerRank >= rendezvous.MaxWorkers:
		return rendezvous.Report{}, malformed("worker_rank is %d, it must be below %d", read.WorkerRank, rendezvous.MaxWorkers)
	case len(r.GetProcesses()) > maxProcesses:
		return rendezvous.Report{}, malformed("%d processes, there may be %d", len(r.GetProcesses()), maxProcesses)
	case read.Out && read.Round == 0:
		return rendezvous.Report{}, malformed("round is 0 and out is set")
	case r.GetFailure().GetRound() > read.Round || r.GetFailure().GetCode() < 0 || r.GetFailure().GetCode() > 255:
		return rendezvous.Report{}, malformed("a failure in round %d, with code %d, cannot be in round %d",
			r.GetFailure().GetRound(), r.GetFailure().GetCode(), read.Round)
	case len(r.GetFailure().GetMessage()) > maxFaultBytes:
		return rendezvous.Report{}, malformed("what is said of a failure has %d bytes, it may have %d", len(r.GetFailure().GetMessage()), maxFaultBytes)
	case len(r.GetSnapshotError()) > maxErrorBytes:
		return rendezvous.Report{}, malformed("snapshot_error has %d bytes, it may have %d", len(r.GetSnapshotError()), maxErrorBytes)
	}
	refused := readLists(r, &read)
	return read, refused
}

// readLists takes what a report has several of, and what it says of the storage.
func readLists(r *rendezvousv1.Report, read *rendezvous.Report) (refused *rendezvous.Refusal) {
	if read.Snapshots, refused = readSnapshots(r.GetSnapshots(), r.GetRound()); refused != nil {
		return refused
	}
	if read.Probed, refused = readProbed(r); refused != nil {
		return refused
	}
	if read.Unreached, refused = readUnreached(r.GetUnreached()); refused != nil {
		return refused
	}
	if refused = readStorage(r, read); refused != nil {
		return refused
	}
	if refused = readScores(r, read); refused != nil {
		return refused
	}
	if read.Listed, refused = readListed(r); refused != nil {
		return refused
	}
	for rank, p := range r.GetProcesses() {
		one, why := readProcess(p)
		if why != "" {
			return malformed("process %d: %s", rank, why)
		}
		read.Processes = append(read.Processes, one)
	}
	return nil
}

// duration is what a program has measured; 0, for not known, when that cannot be: programs may say anything.
func duration(nanos uint64) time.Duration {
	if nanos > uint64(rendezvous.MaxPause) {
		return 0
	}
	return time.Duration(nanos)
}

func readProbed(r *rendezvousv1.Report) ([]rendezvous.Probed, *rendezvous.Refusal) {
	if n := len(r.GetProbed()); n > rendezvous.MaxProbes {
		return nil, malformed("the answers to %d probes, there may be %d", n, rendezvous.MaxProbes)
	}
	var read []rendezvous.Probed
	for _, p := range r.GetProbed() {
		read = append(read, rendezvous.Probed{Number: p.GetNumber(), Reached: p.GetReached(), Refused: p.GetRefused() && !p.GetReached()})
	}
	return read, nil
}

func readUnreached(all []*rendezvousv1.Unreached) ([]rendezvous.Unreached, *rendezvous.Refusal) {
	if n := len(all); n > maxUnreached {
		return nil, malformed("%d holders that were not reached, there may be %d", n, maxUnreached)
	}
	var read []rendezvous.Unreached
	for _, u := range all {
		one := rendezvous.Unreached{Address: u.GetAddress(), Serves: rendezvous.Server{Port: u.GetPort()}, Why: plain.Text(u.GetError())}
		if n := len(u.GetCertificate()); n != len(one.Serves.Certificate) {
			return nil, malformed("the certificate of a holder has %d bytes, it must have %d", n, len(one.Serves.Certificate))
		}
		if n := len(u.GetError()); n > maxErrorBytes {
			return nil, malformed("what is said of a holder has %d bytes, it may have %d", n, maxErrorBytes)
		}
		copy(one.Serves.Certificate[:], u.GetCertificate())
		read = append(read, one)
	}
	return read, nil
}

// readSnapshots reads snapshots of rounds up to one. One of round 0 comes from another job.
func readSnapshots(all []*rendezvousv1.Snapshot, round uint64) ([]rendezvous.Snapshot, *rendezvous.Refusal) {
	if n := len(all); n > maxSnapshots {
		return nil, malformed("%d snapshots, there may be %d", n, maxSnapshots)
	}
	var read []rendezvous.Snapshot
	for _, s := range all {
		if s.GetRound() > round || s.GetStep() > rendezvous.MaxCount || s.GetBytes() > rendezvous.MaxCount {
			return nil, malformed("a snapshot of round %d, step %d, %d bytes cannot be in round %d",
				s.GetRound(), s.GetStep(), s.GetBytes(), round)
		}
		one := rendezvous.Snapshot{Round: s.GetRound(), Step: s.GetStep(), Bytes: s.GetBytes(), Part: s.GetPart()}
		if _, ok := share.Parse(one.Part); !ok && one.Part != "" {
			return nil, malformed("a part of a snapshot is named %.64q", one.Part)
		}
		switch len(s.GetHash()) {
		case 0:
			continue // of an agent that knows no hashes: nobody could tell what it is
		case len(one.Hash):
			copy(one.Hash[:], s.GetHash())
		default:
			return nil, malformed("the hash of a snapshot has %d bytes, it must have %d", len(s.GetHash()), len(one.Hash))
		}
		read = append(read, one)
	}
	return read, nil
}

// readStorage reads what has come of orders about the storage.
func readStorage(r *rendezvousv1.Report, read *rendezvous.Report) *rendezvous.Refusal {
	var refused *rendezvous.Refusal
	if d := r.GetDurable(); d != nil {
		if read.Durable, refused = readDurable(d.GetSnapshot(), d.GetPath()); refused != nil {
			return refused
		}
	}
	if len(r.GetUploadError()) > maxErrorBytes {
		return malformed("upload_error has %d bytes, it may have %d", len(r.GetUploadError()), maxErrorBytes)
	}
	if len(r.GetSnapshotTrouble()) > maxErrorBytes {
		return malformed("snapshot_trouble has %d bytes, it may have %d", len(r.GetSnapshotTrouble()), maxErrorBytes)
	}
	read.UploadError, read.SnapshotTrouble = plain.Text(r.GetUploadError()), plain.Text(r.GetSnapshotTrouble())
	if u := r.GetUncopied(); u != nil {
		if len(u.GetError()) > maxErrorBytes {
			return malformed("the error of uncopied has %d bytes, it may have %d", len(u.GetError()), maxErrorBytes)
		}
		read.Uncopied = rendezvous.Uncopied{Round: u.GetRound(), Step: u.GetStep(), Why: plain.Text(u.GetError())}
	}
	if read.Put, refused = readSnapshots(r.GetPut(), r.GetRound()); refused != nil {
		return refused
	}
	restored := r.GetRestored()
	if restored == nil {
		return nil
	}
	if read.RestoredParts, refused = readSnapshots(restored.GetParts(), rendezvous.MaxCount); refused != nil {
		return refused
	}
	if read.RestoredOf, refused = readSnapshots(restored.GetOf(), rendezvous.MaxCount); refused != nil {
		return refused
	}
	words := strings.Join(restored.GetRefused(), "; ")
	if len(words) > maxErrorBytes || len(restored.GetError()) > maxErrorBytes {
		return malformed("what is said of a restore has more than %d bytes", maxErrorBytes)
	}
	read.Restored = rendezvous.Restored{
		Number: restored.GetNumber(), Found: restored.GetSnapshot() != nil,
		Refused: plain.Text(words), Error: plain.Text(restored.GetError()),
	}
	if read.Restored.Found {
		read.Restored.Durable, refused = readDurable(restored.GetSnapshot(), restored.GetPath())
		return refused
	}
	read.Restored.Path, refused = readPath(restored.GetPath())
	return refused
}

func readDurable(s *rendezvousv1.Snapshot, path string) (rendezvous.Durable, *rendezvous.Refusal) {
	read := rendezvous.Durable{Snapshot: rendezvous.Snapshot{Round: s.GetRound(), Step: s.GetStep(), Bytes: s.GetBytes()}}
	switch {
	case s.GetRound() > rendezvous.MaxCount || s.GetStep() > rendezvous.MaxCount || s.GetBytes() > rendezvous.MaxCount:
		return rendezvous.Durable{}, malformed("a checkpoint of round %d, step %d, %d bytes is out of range", s.GetRound(), s.GetStep(), s.GetBytes())
	case len(s.GetHash()) != len(read.Snapshot.Hash):
		return rendezvous.Durable{}, malformed("the hash of a checkpoint has %d bytes, it must have %d", len(s.GetHash()), len(read.Snapshot.Hash))
	}
	copy(read.Snapshot.Hash[:], s.GetHash())
	var refused *rendezvous.Refusal
	read.Path, refused = readPath(path)
	return read, refused
}

func readPath(path string) (string, *rendezvous.Refusal) {
	if len(path) > maxPathBytes {
		return "", malformed("the path of a checkpoint has %d bytes, it may have %d", len(path), maxPathBytes)
	}
	return plain.Text(path), nil
}

func readProcess(p *rendezvousv1.Process) (rendezvous.Process, string) {
	read := rendezvous.Process{
		ProgramPhase: rendezvous.ProgramPhase(p.GetPhase()), Waiting: rendezvous.Waiting(p.GetWaiting()), Elastic: p.GetElastic(),
		Entered: p.GetEntered(), Done: p.GetDone(), LastStep: p.GetLastStep(), Samples: p.GetSamples(),
		Barrier: p.GetBarrierAttempt(), Stop: p.GetStop(),
		Clean: p.CleanStep != nil, CleanStep: p.GetCleanStep(), Leaves: p.GetLeaves(), Leaving: p.GetLeavingStep(),
		Fault: plain.Text(p.GetFault().GetMessage()), Exited: p.GetExit() != nil, ExitCode: p.GetExit().GetCode(),
		OwnTime: duration(p.GetOwnNanos()), Sharded: p.GetSharded(),
	}
	if _, known := rendezvousv1.Waiting_name[int32(p.GetWaiting())]; !known {
		return rendezvous.Process{}, fmt.Sprintf("waiting %d is not known", p.GetWaiting())
	}
	if _, known := rendezvousv1.Phase_name[int32(p.GetPhase())]; !known {
		return rendezvous.Process{}, fmt.Sprintf("phase %d is not known", p.GetPhase())
	}
	for _, count := range []uint64{read.Entered, read.Done, read.LastStep, read.Samples, read.Barrier, read.Stop, read.CleanStep, read.Leaving, p.GetFault().GetStep()} {
		if count > rendezvous.MaxCount {
			return rendezvous.Process{}, fmt.Sprintf("a count of %d is out of range", count)
		}
	}
	if n := len(p.GetFault().GetMessage()); n > maxFaultBytes {
		return rendezvous.Process{}, fmt.Sprintf("the fault has %d bytes, it may have %d", n, maxFaultBytes)
	}
	if read.ExitCode < 0 || read.ExitCode > 255 {
		return rendezvous.Process{}, fmt.Sprintf("exit code %d is out of range", read.ExitCode)
	}
	if len(p.GetMetrics()) > maxMetrics {
		return rendezvous.Process{}, fmt.Sprintf("%d metrics, there may be %d", len(p.GetMetrics()), maxMetrics)
	}
	for _, metric := range p.GetMetrics() {
		if !isMetricName(metric.GetName()) {
			return rendezvous.Process{}, fmt.Sprintf("metric name %.64q has more than 32 letters, digits and _, or others", metric.GetName())
		}
		if math.IsNaN(metric.GetValue()) || math.IsInf(metric.GetValue(), 0) {
			return rendezvous.Process{}, fmt.Sprintf("metric %s is %v, it must be finite", metric.GetName(), metric.GetValue())
		}
		read.Metrics = append(read.Metrics, rendezvous.Metric{Name: metric.GetName(), Value: metric.GetValue()})
	}
	return read, ""
}

// cut is as much of a text as there is room for.
func cut(text string, room int) string {
	if len(text) <= room {
		return text
	}
	return strings.ToValidUTF8(text[:room-len("…")], "") + "…"
}

// directiveMessage is a directive as it travels.
func directiveMessage(d *rendezvous.Directive, sequence uint64) *rendezvousv1.Directive {
	m := &rendezvousv1.Directive{
		Term: d.Term, Round: d.Round, Released: d.Released, Sequence: sequence,
		Raise: d.Raise, Finish: d.Finish, Standby: d.Standby, TicketKey: d.Key,
		BeatMillis: uint32(d.Beat.Milliseconds()),
		Hold:       d.Hold, Restarts: d.Restarts, ListBest: d.ListBest,
	}
	if d.World != nil {
		m.World = placeMessage(d.World)
	}
	if d.Barrier != nil {
		m.Barrier = &rendezvousv1.Barrier{Attempt: d.Barrier.Attempt, Step: d.Barrier.Step, Save: d.Barrier.Save}
	}
	if d.Abort != nil {
		m.Abort = &rendezvousv1.Abort{Reason: cut(d.Abort.Reason, maxReasonBytes), Planned: d.Abort.Planned, SaveStep: d.Abort.Save, LeaveStep: d.Abort.Leave}
	}
	if p := d.Prefetch; p != nil {
		m.Prefetch = &rendezvousv1.Prefetch{Snapshot: snapshotMessage(&p.Snapshot), Parts: partMessages(p.Parts), Holders: holderMessages(p.Holders), Peers: holderMessages(p.Peers)}
	}
	if c := d.Copies; c != nil {
		m.Copies = &rendezvousv1.Prefetch{Snapshot: snapshotMessage(&c.Snapshot), Parts: partMessages(c.Parts), Holders: holderMessages(c.Holders)}
	}
	if u := d.Upload; u != nil {
		m.Upload = &rendezvousv1.Upload{
			Snapshot: snapshotMessage(&u.Snapshot), Keep: uint32(u.Keep), Parts: partMessages(u.Parts), Holders: holderMessages(u.Holders),
			Put: partMessages(u.Put), Manifest: partMessages(u.Manifest), Rate: u.Rate,
			Score: u.Score, Durable: u.Durable,
		}
	}
	m.Staging = stagingMessage(d.Staging)
	if d.Relied != nil {
		m.Relied = &rendezvousv1.Snapshot{Round: d.Relied.Round, Step: d.Relied.Step}
	}
	if d.Scored != nil {
		m.Scored = &rendezvousv1.Snapshot{Round: d.Scored.Round, Step: d.Scored.Step}
	}
	if r := d.Restore; r != nil {
		m.Restore = &rendezvousv1.Restore{Number: r.Number, Path: r.Path, Apart: r.Apart, Parts: partMessages(r.Parts), Without: r.Without}
	}
	for i := range d.Probes {
		p := &d.Probes[i]
		m.Probes = append(m.Probes, &rendezvousv1.Probe{
			Number: p.Number, Address: p.Peer.Address, Port: p.Peer.Port, Certificate: p.Peer.Certificate[:],
		})
	}
	return m
}

func placeMessage(p *rendezvous.Place) *rendezvousv1.World {
	m := &rendezvousv1.World{
		MembersDigest: p.Digest, FromStep: p.FromStep,
		WorkerRank: uint32(p.WorkerRank), Workers: uint32(p.Workers), ProcessesPerWorker: uint32(p.Processes),
		MasterAddress: p.Master.Address, MasterPort: p.Master.Port,
		Parent: p.Parent, Restore: p.Restore, Writer: p.Writer, Handover: p.Handover,
	}
	if p.Snapshot != nil {
		m.Snapshot = snapshotMessage(p.Snapshot)
	}
	m.Parts, m.Holders, m.Peers, m.Staging = partMessages(p.Parts), holderMessages(p.Holders), holderMessages(p.Peers), stagingMessage(p.Staging)
	return m
}

func partMessages(parts []rendezvous.Snapshot) []*rendezvousv1.Snapshot {
	var messages []*rendezvousv1.Snapshot
	for i := range parts {
		messages = append(messages, snapshotMessage(&parts[i]))
	}
	return messages
}

func stagingMessage(s *rendezvous.Staging) *rendezvousv1.Staging {
	if s == nil {
		return nil
	}
	m := &rendezvousv1.Staging{Of: uint32(s.Of)}
	for _, share := range s.Shares {
		m.Shares = append(m.Shares, uint32(share))
	}
	return m
}

func snapshotMessage(s *rendezvous.Snapshot) *rendezvousv1.Snapshot {
	return &rendezvousv1.Snapshot{Round: s.Round, Step: s.Step, Bytes: s.Bytes, Hash: s.Hash[:], Part: s.Part}
}

func holderMessages(holders []rendezvous.Supplier) []*rendezvousv1.Holder {
	var messages []*rendezvousv1.Holder
	for i := range holders {
		h := &holders[i]
		messages = append(messages, &rendezvousv1.Holder{Address: h.Address, Port: h.Port, Certificate: h.Certificate[:], Ticket: h.Ticket, Parts: h.Parts})
	}
	return messages
}
