package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
)

var (
	// ErrExists says that an object of that name is there already.
	ErrExists = errors.New("it is there already")
	// ErrNotFound says that there is no such object.
	ErrNotFound = errors.New("it is not there")
	// ErrRefused marks what no repetition mends: the bucket is missing, or the credentials do not allow it.
	ErrRefused = errors.New("the storage refuses")
)

// object is what a listing tells of one.
type object struct {
	Key   string
	Bytes int64
	// Changed is when it was made, by the storage's clock.
	Changed time.Time
}

// bucket is a place for objects, which are made once and never changed. What it has confirmed survives the loss of
// power, and is seen by everybody from then on. Its methods may be called from any goroutine.
type bucket interface {
	// create makes an object; ErrExists when one of that key is there.
	create(ctx context.Context, key string, data []byte) error
	// open reads an object; ErrNotFound when there is none.
	open(ctx context.Context, key string) (io.ReadCloser, error)
	// list calls yield for all objects whose keys begin with prefix, which ends with a slash.
	list(ctx context.Context, prefix string, yield func(object) error) error
	// remove deletes an object; one that is not there is no error.
	remove(ctx context.Context, key string) error
	close() error
}

// Schemes are those of the URLs that Open takes.
var Schemes = []string{"s3", "gs", "azblob", "file"}

// openBucket opens what a URL names.
func openBucket(ctx context.Context, address string) (bucket, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("the storage's URL: %w", err)
	}
	switch parsed.Scheme {
	case "file":
		return openFolder(parsed)
	case "s3", "gs", "azblob":
		return openCloud(ctx, parsed)
	default:
		return nil, fmt.Errorf("the storage's URL begins with %q, and %s are known", parsed.Scheme, strings.Join(Schemes, ", "))
	}
}

const (
	// firstPause and longestPause are between repetitions of a request that failed, patience is how long one is
	// repeated.
	firstPause   = 200 * time.Millisecond
	longestPause = 10 * time.Second
	patience     = 2 * time.Minute
	// leastTries is how often it is tried then in any case: one that hangs for all of that time says nothing of the next.
	leastTries = 4
)

// again repeats what fails for a reason that time may mend; without patience nothing.
func again[T any](ctx context.Context, patience time.Duration, what func() (T, error)) (T, error) {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = firstPause, longestPause
	began, tries := time.Now(), 0
	return backoff.Retry(ctx, func() (T, error) {
		got, err := what()
		tries++
		if err != nil && (final(err) || time.Since(began) >= patience && (patience == 0 || tries >= leastTries)) {
			err = backoff.Permanent(err)
		}
		return got, err
	}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
}

func final(err error) bool {
	return errors.Is(err, ErrExists) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrRefused) || errors.Is(err, ErrNewer)
}
