package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"

	"golang.org/x/time/rate"
)

const (
	// rememberGone is how long a job that was forgotten is remembered as gone.
	rememberGone = time.Hour
	// presumeGone is how long every attempt of a job counts as gone that was released before this
	// leader had heard which attempt it is at.
	presumeGone = 30 * time.Second
	// maxTakeovers is how many jobs a new leader takes over at the same time. With a write for each of thousands at
	// once it keeps the API server from renewing its own lease.
	maxTakeovers = 32
	// changeRate is how often in a second the controller is told of one job in the long run, changeBurst how
	// often at once: each time may cost a write, and it is the members who say when.
	changeRate  = 5
	changeBurst = 20
)

// registry holds the jobs of one leader. Its lock is never held while a job's is asked for, so that a job that is busy
// delays no other.
type registry struct {
	options Options
	metrics *serverMetrics
	changed chan rendezvous.JobKey
	changes changes

	// writing ends the writes that are under way; writes counts them.
	writing context.Context
	cancel  context.CancelFunc
	writes  sync.WaitGroup
	// takeovers has a place for each job that is taken over at the same time.
	takeovers chan struct{}

	mu   sync.Mutex
	jobs map[rendezvous.JobKey]*job
	// pods says which job expects a pod, by uid.
	pods   map[string]rendezvous.JobKey
	gone   map[rendezvous.JobKey]goneJob
	closed bool
}

// goneJob is a job that was released or forgotten. Its attempt is 0 when it was never known, its uid empty when nobody
// knows that either.
type goneJob struct {
	uid     string
	attempt int32
	// pods are those that it expected in the end, and within an hour before.
	pods formerPods
	at   time.Time
}

// lets says whether an agent may end, since this is the job that it belongs to. An agent does not say for which of the jobs of
// one name it asks: another one may have been made since, whose attempts begin anew, and whose pods are not expected yet.
func (g *goneJob) lets(h *hello, now time.Time) bool {
	if g.attempt == 0 {
		return now.Sub(g.at) < presumeGone
	}
	_, had := g.pods[h.podUID]
	return had && h.attempt <= g.attempt
}

func newRegistry(options Options, metrics *serverMetrics) *registry {
	writing, cancel := context.WithCancel(context.Background())
	return &registry{
		options: options, metrics: metrics,
		changed: make(chan rendezvous.JobKey),
		changes: changes{signal: make(chan struct{}, 1), queued: map[rendezvous.JobKey]bool{}, paced: map[rendezvous.JobKey]*rate.Limiter{}},
		writing: writing, cancel: cancel, takeovers: make(chan struct{}, maxTakeovers),
		jobs: map[rendezvous.JobKey]*job{},
		pods: map[string]rendezvous.JobKey{},
		gone: map[rendezvous.JobKey]goneJob{},
	}
}

func (r *registry) now() time.Time { return time.Now() }

// awaitTurn waits until a job may be taken over, or nothing is written any more. What it returns lets the next one.
func (r *registry) awaitTurn() func() {
	select {
	case r.takeovers <- struct{}{}:
		return func() { <-r.takeovers }
	case <-r.writing.Done():
		return func() {}
	}
}

func (r *registry) expect(key rendezvous.JobKey, gang rendezvous.Gang) {
	for {
		j, before := r.open(key, gang.JobUID)
		if before != nil {
			before.end()
		}
		if j == nil || j.expect(gang) {
			return
		}
		// It was dropped in the meantime.
	}
}

// open finds the job, or makes it. It returns the job of that name and another uid that it takes the place of; no job
// at all once the registry is closed.
func (r *registry) open(key rendezvous.JobKey, uid string) (j, before *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, nil
	}
	delete(r.gone, key)
	j = r.jobs[key]
	if j != nil && j.uid != uid {
		r.forgetPods(j)
		before, j = j, nil
	}
	if j == nil {
		j = newJob(r, key, uid)
		r.jobs[key] = j
	}
	return j, before
}

// own makes these pods those of a job, if there is one of that key still that is this one.
func (r *registry) own(j *job, members []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.jobs[j.key] != j || slices.Equal(members, j.pods) {
		return
	}
	j.had.keep(r.now(), j.pods)
	r.forgetPods(j)
	j.pods = members
	for _, uid := range members {
		r.pods[uid] = j.key
	}
}

// formerPods are pods that a job expected before, each with when it did last.
type formerPods map[string]time.Time

// keep adds some, and drops those of long ago.
func (f *formerPods) keep(now time.Time, pods []string) {
	if *f == nil {
		*f = formerPods{}
	}
	for _, uid := range pods {
		(*f)[uid] = now
	}
	maps.DeleteFunc(*f, func(_ string, at time.Time) bool { return now.Sub(at) > rememberGone })
}

func (r *registry) forgetPods(j *job) {
	for _, uid := range j.pods {
		if r.pods[uid] == j.key {
			delete(r.pods, uid)
		}
	}
	j.pods = nil
}

func (r *registry) release(key rendezvous.JobKey, uid string) {
	r.mu.Lock()
	j := r.jobs[key]
	if known, ok := r.gone[key]; j == nil && (!ok || known.attempt == 0) {
		r.gone[key] = goneJob{uid: uid, at: r.now()}
	}
	r.mu.Unlock()
	if j != nil && j.uid == uid {
		j.release()
	}
}

func (r *registry) forget(key rendezvous.JobKey, uid string) {
	r.mu.Lock()
	j := r.jobs[key]
	r.mu.Unlock()
	if j == nil || j.uid != uid || j.deposed() {
		// A leader that was deposed has to remember it as long as it lives.
		return
	}
	r.mu.Lock()
	if r.jobs[key] == j {
		j.had.keep(r.now(), j.pods)
		r.forgetPods(j)
		delete(r.jobs, key)
		r.gone[key] = goneJob{uid: uid, pods: j.had, at: r.now()}
	}
	r.mu.Unlock()
	attempt := j.end()
	r.mu.Lock()
	defer r.mu.Unlock()
	if gone, ok := r.gone[key]; ok && gone.uid == uid {
		gone.attempt = attempt
		r.gone[key] = gone
	}
}

func (r *registry) observe(key rendezvous.JobKey) rendezvous.Observation {
	r.mu.Lock()
	j := r.jobs[key]
	r.mu.Unlock()
	if j == nil {
		return rendezvous.Observation{}
	}
	return j.observe(r.now())
}

func (r *registry) inspect(key rendezvous.JobKey) (rendezvous.Inspection, bool) {
	r.mu.Lock()
	j := r.jobs[key]
	r.mu.Unlock()
	if j == nil {
		return rendezvous.Inspection{}, false
	}
	return j.inspect(r.now())
}

func (r *registry) all() []*job {
	r.mu.Lock()
	defer r.mu.Unlock()
	jobs := make([]*job, 0, len(r.jobs))
	for _, j := range r.jobs {
		jobs = append(jobs, j)
	}
	return jobs
}

// find returns the job that an agent asks for.
func (r *registry) find(h *hello) (*job, *rendezvous.Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if owner, ok := r.pods[h.podUID]; ok && owner != h.job {
		return nil, &rendezvous.Refusal{Kind: rendezvous.RefusedRight, Message: fmt.Sprintf("this pod is a worker of job %s, not of job %s", owner, h.job)}
	}
	if j := r.jobs[h.job]; j != nil {
		return j, nil
	}
	if gone, ok := r.gone[h.job]; ok && gone.lets(h, r.now()) {
		return nil, &rendezvous.Refusal{Kind: rendezvous.RefusedForGood, Message: rendezvous.GoneMessage}
	}
	return nil, &rendezvous.Refusal{Kind: rendezvous.RefusedForNow, Message: fmt.Sprintf("job %s is not expected yet: connect again", h.job)}
}

// expects says whether a pod that claims to be this one would be welcome.
func (r *registry) expects(who rendezvous.Identity) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	job, ok := r.pods[who.PodUID]
	return ok && job.Namespace == who.Namespace
}

// tick tells every job that time passes, until the context ends.
func (r *registry) tick(ctx context.Context) {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	var late sync.WaitGroup
	defer late.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, j := range r.all() {
			j.pass(&late)
		}
		r.changes.rest(r.now())
		r.mu.Lock()
		for key, gone := range r.gone {
			if r.now().Sub(gone.at) > rememberGone {
				delete(r.gone, key)
			}
		}
		r.mu.Unlock()
	}
}

// stopping is what agents are told when the server stops.
var stopping = rendezvous.Refusal{Kind: rendezvous.RefusedForNow, Message: "this operator stops: connect again"}

// shutdown ends every session and every write, for good.
func (r *registry) shutdown() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	for _, j := range r.all() {
		j.close(stopping, outcomeHandedOver)
	}
	r.cancel()
}

// deliverChanges hands out the keys of changed jobs, each once however often it changed, until the
// context ends.
func (r *registry) deliverChanges(ctx context.Context) {
	later := time.NewTimer(0)
	defer later.Stop()
	for {
		key, ok, wait := r.changes.next(r.now())
		if !ok {
			later.Reset(wait)
			select {
			case <-ctx.Done():
				return
			case <-r.changes.signal:
			case <-later.C:
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case r.changed <- key:
		}
	}
}

// changes is a queue of jobs without repetition, in which none comes up too often.
type changes struct {
	mu     sync.Mutex
	queue  []rendezvous.JobKey
	queued map[rendezvous.JobKey]bool
	paced  map[rendezvous.JobKey]*rate.Limiter
	signal chan struct{}
}

func (c *changes) add(key rendezvous.JobKey) {
	c.mu.Lock()
	known := c.queued[key]
	if !known {
		c.queue, c.queued[key] = append(c.queue, key), true
	}
	c.mu.Unlock()
	if known {
		return
	}
	select {
	case c.signal <- struct{}{}:
	default:
	}
}

// next takes the first job whose turn it is. When there is none it returns how long to wait for one.
func (c *changes) next(now time.Time) (key rendezvous.JobKey, ok bool, wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wait = time.Hour
	for i, key := range c.queue {
		pace := c.paced[key]
		if pace == nil {
			pace = rate.NewLimiter(changeRate, changeBurst)
			c.paced[key] = pace
		}
		turn := pace.ReserveN(now, 1)
		if delay := turn.DelayFrom(now); delay > 0 {
			turn.CancelAt(now)
			wait = min(wait, delay)
			continue
		}
		c.queue = slices.Delete(c.queue, i, i+1)
		delete(c.queued, key)
		return key, true, 0
	}
	return rendezvous.JobKey{}, false, wait
}

// rest drops the paces of jobs that nothing was told of lately, those that are gone among them: each is what a new one
// would be.
func (c *changes) rest(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.paced, func(_ rendezvous.JobKey, pace *rate.Limiter) bool { return pace.TokensAt(now) >= changeBurst })
}
