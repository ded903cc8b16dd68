package scale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// profiled is how much of a measurement a profile has.
const profiled = 8 * time.Second

// profile begins to take profiles of the API server and, if it runs, of the operator, each to a file whose name begins with
// this one. What it returns waits for them. Without a folder for them it does nothing.
func (b Bench) profile(ctx context.Context, s *server, name string) func() error {
	if b.Profile == "" {
		return func() error { return nil }
	}
	asked := []func() error{func() error {
		return b.keep(ctx, name+"-apiserver", s.host(), s.environment.Config)
	}}
	if s.operator != nil {
		asked = append(asked, func() error { return b.keep(ctx, name+"-operator", "http://"+s.operator[3], &rest.Config{}) })
	}
	failed := make(chan error, len(asked))
	for _, ask := range asked {
		go func() { failed <- ask() }()
	}
	return func() error {
		var errs []error
		for range asked {
			errs = append(errs, <-failed)
		}
		return errors.Join(errs...)
	}
}

// keep asks a program for a profile and writes it to a file.
func (b Bench) keep(ctx context.Context, name, host string, config *rest.Config) error {
	page, err := read(ctx, config, fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", host, int(profiled.Seconds())))
	if err != nil {
		return fmt.Errorf("take a profile: %w", err)
	}
	defer func() { _ = page.Close() }()
	file, err := os.Create(filepath.Join(b.Profile, name+".pprof"))
	if err != nil {
		return fmt.Errorf("write a profile: %w", err)
	}
	_, err = io.Copy(file, page)
	return errors.Join(err, file.Close())
}

// host is where the API server listens.
func (s *server) host() string { return strings.TrimSuffix(s.environment.Config.Host, "/") }

// cpu is how much processor time the API server has used.
func (s *server) cpu(ctx context.Context) (time.Duration, error) {
	page, err := read(ctx, s.environment.Config, s.host()+"/metrics")
	if err != nil {
		return 0, fmt.Errorf("read the API server's metrics: %w", err)
	}
	defer func() { _ = page.Close() }()
	all, err := parseMetrics(page)
	return time.Duration(all.sum("process_cpu_seconds_total") * float64(time.Second)), err
}

// read gets a page.
func read(ctx context.Context, config *rest.Config, url string) (io.ReadCloser, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	return response.Body, nil
}
