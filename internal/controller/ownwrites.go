package controller

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
)

const (
	// cachePatience is how long the cache may lag behind our own write before the job is read from the API
	// server.
	cachePatience = time.Second
	// After a look in vain the next one comes after firstAgain, then after twice as long, up to lastAgain.
	// Mostly an event is faster.
	firstAgain = 5 * time.Millisecond
	lastAgain  = time.Second
)

// OwnMemory is what the operator has done to a job itself, and need not learn from the cache. One that is started anew has done
// nothing: it knows what its cache knows, and asks the API server where that is not enough.
type OwnMemory struct {
	// Version is the job's resourceVersion after our last write, at WrittenAt; empty for none. Without it a decision on what is
	// older than what an operator before has written comes to nothing: the API server takes no status that is.
	Version   string
	WrittenAt time.Time
	// InVain is how many looks in a row came to nothing: the job in the cache was older than that, or
	// somebody else had written it. Lost, the pauses between such looks begin short again.
	InVain int
	// NotGrown is how often in a row a worker could not be added for a passing fault of the API server. Lost, the same.
	NotGrown int
	// Unanswered is true while a look at the job has failed and none has gone through since, or NotGrown counts; AnsweredAt is
	// when that was over at last. Lost, survivors are given their time from Memory.Since on.
	Unanswered bool
	AnsweredAt time.Time
	// Cleared is the last attempt whose groups were all deleted: nobody makes any for it again. Lost, they are looked for once
	// more.
	Cleared int32
	// Decided is the last attempt that this leader has made durable, Began the last one whose gang it has begun
	// to make. In between there is nothing of it, as long as nobody else leads. Lost, the API server is asked what there is, and
	// a gang that is not whole is made anew at once: most likely its maker has died over it.
	Decided, Began int32
	// Faulty is the last attempt whose gang was not made whole for a passing fault of the API server, Faults how many in a row
	// were not. Lost, such an attempt counts as one that came to nothing.
	Faulty int32
	Faults int32
	// Made are the pods that were there at MadeAt, by the API server's word, and that the cache has not shown yet. Lost, Sure is
	// as well.
	Made   map[types.UID]bool
	MadeAt time.Time
	// Sure is the last attempt of which every pod that was ever made was shown by the cache, or is in Made. Lost, the pods are
	// read from the API server before one is taken for missing.
	Sure int32
	// Marks are the marks of leaving that were written last, by pod. Lost, one that the cache does not show yet is written once
	// more.
	Marks map[types.UID]ownMark
}

// ownMark is a mark that was written on a pod, the zero one where it was taken away, and the pod's
// resourceVersion since.
type ownMark struct {
	version string
	mark    fleet.Mark
}

// marked notes a mark that was written. Others may be reading the marks so far.
func (o *OwnMemory) marked(pod types.UID, mark ownMark) {
	o.Marks = maps.Clone(o.Marks)
	if o.Marks == nil {
		o.Marks = map[types.UID]ownMark{}
	}
	o.Marks[pod] = mark
}

// justDecided says that this leader has made an attempt durable a moment ago, and nothing of it. After that moment
// it may have slept, and another leader have made the gang.
func (o *OwnMemory) justDecided(attempt int32, now time.Time) bool {
	since := now.Sub(o.WrittenAt)
	return o.Decided == attempt && o.Began != attempt && since >= 0 && since < cachePatience
}

// made notes pods that the API server has made or shown, of which those that it refused have no uid.
func (o *OwnMemory) made(pods []*corev1.Pod, now time.Time) {
	made := maps.Clone(o.Made)
	if made == nil {
		made = map[types.UID]bool{}
	}
	for _, pod := range pods {
		if pod.UID != "" {
			made[pod.UID] = true
		}
	}
	if len(made) > 0 {
		o.Made, o.MadeAt = made, now
	}
}

// answered notes that the API server has made a pod, or refused it for a reason.
func (o *OwnMemory) answered(now time.Time) {
	o.NotGrown = 0
	if o.Unanswered {
		o.Unanswered, o.AnsweredAt = false, now
	}
}

// doubt notes that there may be pods of which only the API server knows.
func (o *OwnMemory) doubt() { o.Sure = 0 }

// shown notes what the cache shows. Whether a pod is there that it has not shown for long, it cannot tell.
func (o *OwnMemory) shown(pods []*corev1.Pod, now time.Time) {
	left := o.unseen(pods, now)
	if left == nil && !o.allIn(pods) {
		o.doubt()
	}
	o.Made = left
}

// allIn says whether all pods that were made are among some.
func (o *OwnMemory) allIn(pods []*corev1.Pod) bool {
	left := maps.Clone(o.Made)
	for _, pod := range pods {
		delete(left, pod.UID)
	}
	return len(left) == 0
}

// unseen are those of the pods that were made which a cache has still to show. One that is not seen for long
// has been deleted again.
func (o *OwnMemory) unseen(pods []*corev1.Pod, now time.Time) map[types.UID]bool {
	if since := now.Sub(o.MadeAt); len(o.Made) == 0 || since < 0 || since >= cachePatience {
		return nil
	}
	left := maps.Clone(o.Made)
	for _, pod := range pods {
		delete(left, pod.UID)
	}
	if len(left) == 0 {
		return nil
	}
	return left
}

// showMarks puts on pods from a cache that lags the marks that were written on them, and returns those
// whose pods are still there.
func (o *OwnMemory) showMarks(pods []*corev1.Pod) map[types.UID]ownMark {
	var left map[types.UID]ownMark
	for _, pod := range pods {
		mark, known := o.Marks[pod.UID]
		if !known {
			continue
		}
		if left == nil {
			left = map[types.UID]ownMark{}
		}
		left[pod.UID] = mark
		if older(pod.ResourceVersion, mark.version) {
			mark.mark.Put(pod)
		}
	}
	return left
}

// wrote notes a look that was carried out, and the version that it has written, if any. That says nothing of what keeps a
// worker from being made.
func (o *OwnMemory) wrote(version string, now time.Time) {
	o.InVain = 0
	if o.NotGrown == 0 {
		o.answered(now)
	}
	if version != "" {
		o.Version, o.WrittenAt = version, now
	}
}

// again is the pause after a look in vain.
func (m *memories) again(uid types.UID) time.Duration {
	pause := firstAgain
	m.update(uid, func(memory *Memory) {
		for i := 0; i < memory.Own.InVain && pause < lastAgain; i++ {
			pause *= 2
		}
		memory.Own.InVain++
	})
	return min(pause, lastAgain)
}

// upToDate returns the job as it may be planned on: what this process has written itself is in it. It is
// nil while the cache lags behind that: what was decided would be decided a second time. A cache that does
// not catch up is not waited for; what the API server says then is taken for the truth, even where it has
// gone back to a backup.
func (r *Reconciler) upToDate(ctx context.Context, job *v1alpha1.TrainingJob) (*v1alpha1.TrainingJob, error) {
	own := r.memory.of(job.UID).Own
	if !older(job.ResourceVersion, own.Version) {
		return job, nil
	}
	if r.Now().Sub(own.WrittenAt) < cachePatience {
		return nil, nil
	}
	live := &v1alpha1.TrainingJob{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(job), live); err != nil {
		return nil, client.IgnoreNotFound(wrapf(err, "get job %s", jobKey(job)))
	}
	if live.UID != job.UID || live.DeletionTimestamp != nil {
		return nil, nil // the cache will hear of it
	}
	if older(live.ResourceVersion, own.Version) {
		r.memory.update(job.UID, func(m *Memory) { m.Own.Version = live.ResourceVersion })
	}
	return live, nil
}

// older compares resourceVersions. Where they cannot be compared nothing is older.
func older(version, than string) bool {
	if than == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}
