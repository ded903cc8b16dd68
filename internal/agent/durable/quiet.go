package durable

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"
)

// A storage may take a request and never answer it, and say of nothing that it fails: a mount that hangs, a server that is stuck. What is
// brought is written to files piece by piece, so that nothing is written for a while tells as much.

// quietTries is how many times as long as it takes to say so a request goes on in silence, before it is broken off and made anew.
const quietTries = 4

// listening sees whether something comes of a request for a restore.
type listening struct {
	k *Keeper
	// ctx is that of the request.
	ctx  context.Context
	stop func()

	mu sync.Mutex
	// file is the newest that is written to.
	file string
}

// listen begins to, until it is stopped. Where nothing comes it says so, and breaks the request off in the end.
func (k *Keeper) listen(ctx context.Context, patience time.Duration) *listening {
	inner, cancel := context.WithCancel(ctx)
	l := &listening{k: k, ctx: inner, stop: cancel}
	if k.pauses.Quiet <= 0 {
		return l
	}
	var done sync.WaitGroup
	done.Go(func() { l.watch(cancel, patience) })
	l.stop = func() {
		cancel()
		done.Wait()
	}
	return l
}

// from notes to which file the next pieces are written.
func (l *listening) from(file *os.File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.file = file.Name()
}

// sign is what changes with whatever comes.
func (l *listening) sign() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	written, err := os.Stat(l.file)
	if err != nil {
		return l.file
	}
	return fmt.Sprint(l.file, written.ModTime().UnixNano(), written.Size())
}

func (l *listening) watch(cancel func(), patience time.Duration) {
	quiet := l.k.pauses.Quiet
	ticker := time.NewTicker(max(quiet/8, time.Millisecond))
	defer ticker.Stop()
	told, last, since := "", l.sign(), time.Now()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-ticker.C:
		}
		now := l.sign()
		switch silent := time.Since(since); {
		case now != last:
			last, since = now, time.Now()
			l.tell(&told, "")
		case silent >= patience:
			l.k.note("a request for a checkpoint is broken off: nothing has come of it for %s", patience)
			cancel()
			return
		case silent >= quiet && told == "":
			l.tell(&told, fmt.Sprintf("nothing has come from the storage for %s, and no error", quiet))
		}
	}
}

// tell says that nothing comes, or that something does again, unless an error says more.
func (l *listening) tell(told *string, why string) {
	if *told == why {
		return
	}
	k := l.k
	k.mu.Lock()
	if k.state.Waiting == *told {
		k.state.Waiting = why
	}
	*told = why
	k.mu.Unlock()
	k.changed()
}
