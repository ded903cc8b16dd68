package controller

import (
	"crypto/sha256"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// State is all that a decision may look at.
type State struct {
	Now time.Time
	Job *v1alpha1.TrainingJob
	// Pods are all pods of the job, of any attempt, by name.
	Pods []*corev1.Pod
	// Earlier are names of pods that are still there of another job of this name, which was deleted.
	Earlier []string
	// GroupExists says whether the object of the current attempt's group is there. It is only
	// looked up when pods of the attempt are missing, and true otherwise.
	GroupExists bool
	// GroupKindMissing is set when the cluster does not know the group's kind.
	GroupKindMissing string
	// Placement says why pods have no node, in the words of the gang scheduler.
	Placement string
	// Nodes are the nodes that workers of the job have.
	Nodes Nodes
	// Grant is what the planner of all jobs allows this one.
	Grant fleet.Grant
	// Training is how many jobs of the cluster train now.
	Training int
	// ReclaimTimeout bounds how long a worker that leaves for another job may take.
	ReclaimTimeout time.Duration
	// AttemptTimeout bounds how long a gang is tried that only the scheduler can place and that has no node; 0 for no such bound.
	AttemptTimeout time.Duration
	// DrainTaints are the keys of taints that ask workers to leave.
	DrainTaints []string
	// RackLabel is the label by which nodes say in which rack they are; empty for none.
	RackLabel string
	// UploadRate is how many bytes of a checkpoint each worker may upload in a second; 0 for all that it can.
	UploadRate uint64
	// Quotas are the ResourceQuotas of the namespace, Limits its LimitRanges. They are looked up for a job that has no workers, and
	// for one whose attempt may begin anew.
	Quotas []corev1.ResourceQuota
	Limits []corev1.LimitRange
	// World is what the rendezvous has seen.
	World rendezvous.Observation
	// Memory is what this process remembers of the job.
	Memory Memory
	// AsksFirst is true where nobody leaves for the job before the API server was asked about one of its workers.
	AsksFirst bool
}

// Memory is what the operator keeps of a job between reconciles, and loses when it is started anew. What follows from that is
// said of each. It costs a try, a wait or an event that comes again, and never a decision that counts: those rest on what is
// durable.
type Memory struct {
	// Since is when this process first looked at the job. It is later by then, so more time is given to all that counts from it:
	// a world that was burned, a plan, survivors.
	Since time.Time
	// Own is what it has done itself.
	Own OwnMemory
	// Elastic is what it remembers of an attempt whose world may change.
	Elastic ElasticMemory
	// Vanished are workers of the newest world whose pods are gone and may not have ended; Accounted is true once
	// those were looked for whom only the record names. Lost, they are found by that record, which names all who have a rank;
	// others can make no step.
	Vanished  []Vanished
	Accounted bool
	// Ended are the uids of the last pods that were gone once they had ended, the newest last. Lost, whoever is to get a state from one of these
	// tries for as long as where nobody knows what has become of it.
	Ended []string
	// Trains is true while the job's world trains. Lost, progress is written a little more often at first.
	Trains bool
	// NotAllowedTold is true once an event has told that the job's preemption policy is not allowed, KueueTold once one has
	// told that Kueue is not asked, LateTold once one has told that it will miss its deadline. Lost, it is told again.
	NotAllowedTold bool
	KueueTold      bool
	LateTold       bool
	// NoPlaceSince is that of the last plan. Lost, the gang waits as long anew before its volumes are made smaller.
	NoPlaceSince time.Time
	// Crashes are those of the last plan. Lost, only those are known whose pods are kept for their logs; nobody looks on the other
	// nodes, until a program ends so once more there.
	Crashes map[string]Crashed
	// SizeToldAt is when the condition FullSize was last given another sentence. Lost, it may be given one sooner.
	SizeToldAt time.Time
	// Refusal is the last batch that the API server refused; nil for none. Lost, the batch is tried once more; an attempt
	// of which a part was made is found incomplete, and ends by that.
	Refusal *Refusal
	// Gang is of what its gang was to be made in generation GangOf, see gangKey. Lost, the next change of the job begins the count of
	// its starts in vain anew, whatever changes.
	Gang   [sha256.Size]byte
	GangOf int64
	// Metric is by which its checkpoints were kept for their scores in that generation; empty for none. Lost, what BestKept says of
	// another one stays until something is kept, or missed, by the one that there is.
	Metric string
	// Answer is what the API server has last said of a worker that it was not to make. Lost, it is asked again.
	Answer Answer
	// ReportedAt is when status.progress was last written, with the samples and steps done then, and in
	// which world. Lost, a rate is known one refresh later, and what was done meanwhile is reckoned from what is durable.
	ReportedAt      time.Time
	ReportedSamples uint64
	ReportedStep    uint64
	ReportedRound   uint64
	// Reports is how often it was written in that round. Lost, a world is reported early once more.
	Reports int
}

// Refusal is the answer of the API server to a pod that it would not create.
type Refusal struct {
	Reason, Message string
	// Attempt is the attempt that the batch was made for. It is over before it began.
	Attempt int32
	// Retry is when the batch may be tried again, unless a quota or limit changes before.
	Retry time.Time
	// Count is how often in a row the batch was refused.
	Count int
}

func (s *State) attempt() int32 { return value(s.Job.Status.Attempt) }

// target is how many workers the job should have; what is durable, not what is planned.
func (s *State) target() int32 { return value(s.Job.Status.Workers.Target) }

func (s *State) minimum() int32 { return value(s.Job.Spec.Workers.Min) }

func (s *State) suspended() bool { return value(s.Job.Spec.Suspend) }

func (s *State) finished() bool {
	return isTrue(s.Job.Status.Conditions, v1alpha1.ConditionComplete) ||
		isTrue(s.Job.Status.Conditions, v1alpha1.ConditionFailed)
}

// gang returns the pods of the current attempt.
func (s *State) gang() []*corev1.Pod {
	var gang []*corev1.Pod
	for _, pod := range s.Pods {
		if podAttempt(pod) == s.attempt() {
			gang = append(gang, pod)
		}
	}
	return gang
}

// unharmed returns the pods of the current attempt that have neither ended nor are about to.
func (s *State) unharmed() []*corev1.Pod {
	var unharmed []*corev1.Pod
	for _, pod := range s.gang() {
		if !podEnded(pod) && pod.DeletionTimestamp == nil {
			unharmed = append(unharmed, pod)
		}
	}
	return unharmed
}

// givenUp says whether nobody counts on a worker any more although its pod may not have ended: it was
// lost, or its node does not say what has become of it. Another may take its place.
func (s *State) givenUp(pod *corev1.Pod) bool {
	return s.overdue(pod) || s.lossOf(pod) != nil
}

// lossOf is the last loss of a worker; nil for none. One that is in a later world has come back before
// anybody gave it up, and one whose agent stays is about to.
func (s *State) lossOf(pod *corev1.Pod) *rendezvous.Loss {
	if !s.rendezvousKnows() || s.returns(pod) > 0 {
		return nil
	}
	seen := s.member(pod)
	for i := len(s.World.Losses) - 1; i >= 0; i-- {
		loss := &s.World.Losses[i]
		if loss.UID != string(pod.UID) {
			continue
		}
		if seen.Joined && seen.WorkerRank >= 0 && loss.Round < s.World.Round {
			return nil
		}
		return loss
	}
	if seen.LostIn > 0 {
		return &rendezvous.Loss{UID: string(pod.UID), Name: pod.Name, Round: seen.LostIn, Rank: -1, Message: "it was lost with many others"}
	}
	return nil
}

// returns is how long it is waited for a worker that was lost and whose agent stays: its programs are started anew, and
// another in its place would help nobody sooner. 0 for any other, and once it has lasted for too long.
func (s *State) returns(pod *corev1.Pod) time.Duration {
	seen := s.member(pod)
	patience := value(s.Job.Spec.Failure.RegroupTimeout).Duration
	switch {
	case !s.rendezvousKnows() || !seen.Stays:
		return 0
	case seen.Standby || seen.FellAt.IsZero():
		return max(patience, 1)
	}
	return max(0, seen.FellAt.Add(patience).Sub(s.Now))
}

// overdue says whether a deleted pod still stands in the API long after its grace period: its node is dead.
func (s *State) overdue(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && s.Now.Sub(pod.DeletionTimestamp.Time) > overdueAfter
}

// cutOff says whether a worker that is in no world is on a node that does not answer. The members of a
// world are the rendezvous' to judge: they may train on without us.
func (s *State) cutOff(w *worker) bool {
	return w.bound() && !w.inWorld() && !w.seen.Connected && s.Nodes.unreachable(w.pod.Spec.NodeName)
}

// live returns the pods that still hold room and quota: all that have not ended.
func (s *State) live() []*corev1.Pod {
	var live []*corev1.Pod
	for _, pod := range s.Pods {
		if !podEnded(pod) {
			live = append(live, pod)
		}
	}
	return live
}

// busy returns the pods in which a container may still run. A pod whose containers have all ended
// becomes terminal by itself, and deleting it a moment before would take its logs away.
func (s *State) busy() []*corev1.Pod {
	var busy []*corev1.Pod
	for _, pod := range s.live() {
		if !containersEnded(pod) {
			busy = append(busy, pod)
		}
	}
	return busy
}

// rendezvousKnows says whether the rendezvous speaks of the current attempt, and for sure.
func (s *State) rendezvousKnows() bool {
	return s.World.Known && !s.World.Adopting && s.World.Attempt == s.attempt()
}

func (s *State) member(pod *corev1.Pod) rendezvous.MemberObservation {
	if s.World.Attempt != podAttempt(pod) {
		return rendezvous.MemberObservation{}
	}
	return s.World.Members[string(pod.UID)]
}

func (s *State) groupKey() types.NamespacedName {
	return types.NamespacedName{Namespace: s.Job.Namespace, Name: groupName(s.Job.Name, s.attempt())}
}

func jobKey(job *v1alpha1.TrainingJob) rendezvous.JobKey {
	return rendezvous.JobKey{Namespace: job.Namespace, Name: job.Name}
}

// value reads a pointer, and takes nil for the zero value.
func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
