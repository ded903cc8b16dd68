package rendezvous

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	product "github.com/concertina-dev/concertina/internal/rendezvous"
)

const (
	// recordTime is how long the API server of a busy cluster takes for the read and the write of one record.
	recordTime = 20 * time.Millisecond
	// recordsAtOnce is how many requests it works at.
	recordsAtOnce = 64
)

// records stand for the API server: they outlive operators, are as slow as it is, and are only ever replaced
// when what stands there is what the writer expects.
type records struct {
	places chan struct{}
	mu     sync.Mutex
	of     map[product.JobKey]product.Record
	server *http.Server
}

type recordRequest struct {
	Job        product.JobKey
	Prev, Next product.Record
}

type recordAnswer struct {
	Found   product.Record
	Deposed bool
}

// keepRecords serves records on a socket.
func keepRecords(socket string) (*records, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("serve records: %w", err)
	}
	r := &records{places: make(chan struct{}, recordsAtOnce), of: map[product.JobKey]product.Record{}}
	r.server = &http.Server{Handler: http.HandlerFunc(r.serve), ReadHeaderTimeout: patience}
	go func() { _ = r.server.Serve(listener) }()
	return r, nil
}

func (r *records) serve(w http.ResponseWriter, request *http.Request) {
	var asked recordRequest
	if err := json.NewDecoder(request.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.places <- struct{}{}
	time.Sleep(recordTime)
	<-r.places
	_ = json.NewEncoder(w).Encode(r.replace(asked)) // who does not read it has gone
}

func (r *records) replace(asked recordRequest) recordAnswer {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := r.of[asked.Job]
	if !found.Equal(asked.Prev) {
		return recordAnswer{Found: found, Deposed: true}
	}
	r.of[asked.Job] = asked.Next
	return recordAnswer{Found: asked.Next}
}

// recorder is the operator's way to the records.
type recorder struct{ client *http.Client }

func newRecorder(socket string) recorder {
	return recorder{&http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		MaxIdleConnsPerHost: recordsAtOnce,
	}}}
}

// Record implements Recorder.
func (r recorder) Record(ctx context.Context, job product.JobKey, prev, next product.Record) (product.Record, error) {
	answer, err := call[recordAnswer](ctx, r.client, recordRequest{job, prev, next})
	if err == nil && answer.Deposed {
		err = product.ErrDeposed
	}
	return answer.Found, err
}

func call[T any](ctx context.Context, client *http.Client, asked any) (answer T, err error) {
	text, err := json.Marshal(asked)
	if err != nil {
		return answer, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://records/", bytes.NewReader(text))
	if err != nil {
		return answer, err
	}
	response, err := client.Do(request)
	if err != nil {
		return answer, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	return answer, json.NewDecoder(response.Body).Decode(&answer)
}
