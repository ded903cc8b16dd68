// Command uploader runs beside the agent of a worker whose job has a storage: it makes snapshots durable and brings
// them back.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	_ "golang.org/x/crypto/x509roots/fallback" // its image has no other file, and storages show certificates

	"github.com/concertina-dev/concertina/internal/checkpoint/storage"
	"github.com/concertina-dev/concertina/internal/score"
	"github.com/concertina-dev/concertina/internal/uploader"
	"github.com/concertina-dev/concertina/internal/uploader/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		note("%v", err)
		os.Exit(1)
	}
}

func note(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, "concertina-uploader: "+format+"\n", arguments...)
}

// run serves until ctx ends. The operator configures it by variables of the container.
func run(ctx context.Context) (err error) {
	attempt, err := strconv.ParseInt(os.Getenv(uploader.EnvAttempt), 10, 32)
	if err != nil {
		return fmt.Errorf("%s: %w", uploader.EnvAttempt, err)
	}
	job := storage.Job{
		Namespace: os.Getenv(uploader.EnvNamespace), Name: os.Getenv(uploader.EnvJob), UID: os.Getenv(uploader.EnvJobUID),
	}
	best, err := score.Parse(os.Getenv(uploader.EnvBest))
	if err != nil {
		return fmt.Errorf("%s: %w", uploader.EnvBest, err)
	}
	uploads, closeStorage := open(ctx, job, int32(attempt), best)
	defer func() { err = errors.Join(err, closeStorage()) }()
	listening, err := server.Listen(os.Getenv(uploader.EnvSocket), uploads)
	if err != nil {
		return err
	}
	note("ready for the checkpoints of %s/%s, attempt %d", job.Namespace, job.Name, attempt)
	<-ctx.Done()
	return listening.Close()
}

// open makes the uploader of a job. With a storage that cannot be opened it lives, to tell whoever asks: the words of a
// container that ends are in its log alone.
func open(ctx context.Context, job storage.Job, attempt int32, best score.Best) (*server.Uploader, func() error) {
	opened, err := storage.Open(ctx, os.Getenv(uploader.EnvStorage))
	if err != nil {
		note("%v", err)
		return server.Unopened(err), func() error { return nil }
	}
	return server.New(opened, job, attempt, os.Getenv(uploader.EnvRestoreFrom), best, note), opened.Close
}
