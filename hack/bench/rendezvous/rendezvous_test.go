package rendezvous

import (
	"errors"
	"net/http"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	product "github.com/concertina-dev/concertina/internal/rendezvous"
)

func TestQuantiles(t *testing.T) {
	t.Parallel()
	var samples []time.Duration
	for i := range 200 {
		samples = append(samples, time.Duration((i*7)%200))
	}
	for share, want := range map[float64]time.Duration{0: 0, 0.5: 100, 0.99: 198, 1: 199} {
		if got := quantile(samples, share); got != want {
			t.Errorf("quantile %v is %d, want %d", share, got, want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("a quantile of nothing is %d", got)
	}
}

func TestAgentsHaveAddressesOfTheirOwn(t *testing.T) {
	t.Parallel()
	seen := map[netip.Addr]bool{}
	for i := range 70_000 {
		address := source(i)
		if seen[address] || !address.IsLoopback() || address == netip.MustParseAddr("127.0.0.1") {
			t.Fatalf("agent %d has the address %v", i, address)
		}
		seen[address] = true
	}
}

// Records are replaced as in the API server: only by who knows what stands there.
func TestRecords(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "records")
	kept, err := keepRecords(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = kept.server.Close() }()
	writer := newRecorder(socket)
	defer writer.client.Transport.(*http.Transport).CloseIdleConnections()
	job := product.JobKey{Namespace: namespace, Name: jobName(0)}
	first := product.Record{Term: 1, StartedAt: time.Unix(1e9, 0).UTC()}
	if found, err := writer.Record(t.Context(), job, product.Record{}, first); err != nil || !found.Equal(first) {
		t.Fatalf("the first record: %+v, %v", found, err)
	}
	found, err := writer.Record(t.Context(), job, product.Record{}, product.Record{Term: 2})
	if !errors.Is(err, product.ErrDeposed) || !found.Equal(first) {
		t.Errorf("a second writer found %+v, %v", found, err)
	}
}

func TestSteps(t *testing.T) {
	t.Parallel()
	a := &Agents{paces: map[int]*pace{}}
	if got := a.step(0, 1); got != 0 {
		t.Errorf("before the world begins step %d is done", got)
	}
	a.begin(0, 1, 5)
	a.begin(0, 1, 7) // another member hears of it
	if got := a.hold(0, 1, 6); got != 6 || a.step(0, 1) != 6 {
		t.Errorf("the world stands after step %d, its members say %d", got, a.step(0, 1))
	}
	if got := a.step(0, 2); got != 0 {
		t.Errorf("the next world has done step %d", got)
	}
}
