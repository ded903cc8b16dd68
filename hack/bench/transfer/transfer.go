// Package transfer measures how a state comes from another worker's memory, and from a storage, beside the least that the same bytes
// could take: a copy over one TLS connection, and a copy of a file.
package transfer

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/concertina-dev/concertina/hack/bench/figures"
	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/checkpoint/storage"
	"github.com/concertina-dev/concertina/internal/ticket"
)

// Bench is what is measured.
type Bench struct {
	// MiB is the size of the state, Times how often each is taken, in turns.
	MiB, Times int
	// Memory is a folder in memory, Kept one for the storage.
	Memory, Kept string
	Say          func(string, ...any)
}

// Measure makes the figures: replicate_over_tls is the throughput of a fetch over that of a bare TLS 1.3 copy, restore_peer_over_tls the
// time of a fetch from two holders over it, restore_storage_over_cat the time of a restore from a folder over that of a copy of one file.
func (b Bench) Measure(ctx context.Context) ([]figures.Figure, error) {
	memory, err := os.MkdirTemp(b.Memory, "bench-transfer-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(memory) }()
	kept, err := os.MkdirTemp(b.Kept, "bench-transfer-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(kept) }()
	p, err := newPeers(memory, int64(b.MiB)<<20)
	if err != nil {
		return nil, err
	}
	defer p.close()
	s, err := newShelf(ctx, kept, p)
	if err != nil {
		return nil, err
	}
	defer s.close()
	took := map[string][]time.Duration{}
	for i := range b.Times {
		for _, one := range []struct {
			name string
			do   func(context.Context) error
		}{
			{"tls", p.overTLS}, {"fetch", p.fetchFrom(1)}, {"fetch_of_two", p.fetchFrom(2)}, {"cat", s.cat}, {"restore", s.restore},
		} {
			begin := time.Now()
			if err := one.do(ctx); err != nil {
				return nil, fmt.Errorf("%s: %w", one.name, err)
			}
			took[one.name] = append(took[one.name], time.Since(begin))
			b.Say("%s %d: %v", one.name, i, time.Since(begin).Round(time.Millisecond))
		}
	}
	ratio := func(name, of, over string) figures.Figure {
		return figures.Figure{Name: name, Value: figures.Median(took[of]).Seconds() / figures.Median(took[over]).Seconds()}
	}
	all := []figures.Figure{
		ratio("replicate_over_tls", "tls", "fetch"), ratio("restore_peer_over_tls", "fetch_of_two", "tls"),
		ratio("restore_storage_over_cat", "restore", "cat"),
	}
	for _, name := range []string{"tls", "fetch", "fetch_of_two", "cat", "restore"} {
		all = append(all, figures.Durations(name, took[name])...)
	}
	if mib, err := most(); err == nil {
		all = append(all, figures.Figure{Name: "transfer_rss_mib", Value: mib, Unit: "MiB"}) // of two holders, a fetcher and the storage's client
	}
	return all, nil
}

// peers are two holders of a snapshot, and a worker that fetches it.
type peers struct {
	folder  string
	want    checkpoint.Snapshot
	servers []*checkpoint.Server
	holders []checkpoint.Holder
	to      *checkpoint.Store
	as      *checkpoint.Identity
}

func newPeers(folder string, size int64) (*peers, error) {
	p := &peers{folder: folder}
	var err error
	if p.as, err = checkpoint.NewIdentity(); err != nil {
		return nil, err
	}
	if p.to, err = checkpoint.Open(filepath.Join(folder, "to"), 1); err != nil {
		return nil, err
	}
	for i := range 2 {
		if err := p.add(fmt.Sprint(i), size); err != nil {
			p.close()
			return nil, err
		}
	}
	return p, nil
}

// add adds a holder.
func (p *peers) add(name string, size int64) error {
	store, err := checkpoint.Open(filepath.Join(p.folder, name), 1)
	if err != nil {
		return err
	}
	const part = "state.part"
	if err := write(filepath.Join(store.Directory(), part), size); err != nil {
		return err
	}
	if p.want, err = store.Take(checkpoint.ID{Round: 1, Step: 1}, part, uint64(size)); err != nil {
		return err
	}
	identity, err := checkpoint.NewIdentity()
	if err != nil {
		return err
	}
	server, err := checkpoint.Serve(store, "127.0.0.1:0", identity, func(error) {})
	if err != nil {
		return err
	}
	key := ticket.KeyOf([]byte("of the bench"), identity.Sum())
	server.SetKey(1, key)
	p.servers = append(p.servers, server)
	p.holders = append(p.holders, checkpoint.Holder{
		Address: "127.0.0.1", Port: server.Port(), Certificate: identity.Sum(),
		Ticket: ticket.Issue(key, 1, ticket.Grant{Fetcher: p.as.Sum(), Round: 1, Step: 1}, time.Now().Add(time.Hour)),
	})
	return nil
}

// file is where the first holder has the state.
func (p *peers) file() string { return filepath.Join(p.folder, "0", p.want.String()) }

func (p *peers) close() {
	for _, server := range p.servers {
		_ = server.Close()
	}
}

// fetchFrom fetches the snapshot from so many holders.
func (p *peers) fetchFrom(holders int) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := p.to.Retain(func(checkpoint.ID) bool { return false }); err != nil {
			return err
		}
		return p.to.Fetch(ctx, p.as, checkpoint.Wanted{Snapshot: p.want, Holders: p.holders[:holders]})
	}
}

// shelf is a storage in a folder with the snapshot.
type shelf struct {
	*storage.Storage
	place        storage.Place
	folder, into string
}

const part = "state"

func newShelf(ctx context.Context, folder string, p *peers) (*shelf, error) {
	opened, err := storage.Open(ctx, "file://"+filepath.Join(folder, "kept"))
	if err != nil {
		return nil, err
	}
	s := &shelf{
		opened, storage.Place{Job: storage.Job{Namespace: "bench", Name: "bench", UID: "bench"}, Attempt: 1, ID: p.want.ID}, folder,
		filepath.Join(p.folder, "restored"),
	}
	data, err := os.Open(p.file())
	if err != nil {
		return nil, err
	}
	defer func() { _ = data.Close() }()
	if err := s.Save(ctx, s.place, []storage.File{{Key: part, Data: data, Snapshot: p.want}}); err != nil {
		return nil, err
	}
	return s, copyOf(p.file(), s.one())
}

// one is a plain file with the same bytes, beside the storage.
func (s *shelf) one() string { return filepath.Join(s.folder, "one") }

func (s *shelf) close() { _ = s.Close() }

func (s *shelf) cat(context.Context) error { return copyOf(s.one(), s.into) }

func (s *shelf) restore(ctx context.Context) error {
	if err := os.Remove(s.into); err != nil {
		return err
	}
	reading, err := s.Read(ctx, s.place)
	if err != nil {
		return err
	}
	defer func() { _ = reading.Close(ctx) }()
	file, err := os.Create(s.into)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return reading.Load(ctx, part, file)
}

// copyOf copies a file to a new one.
func copyOf(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{file}, struct{ io.Reader }{source}, make([]byte, 1<<20))
	return errors.Join(err, file.Close())
}

// write makes a file of so many bytes that nothing could pack.
func write(path string, size int64) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.CopyN(file, rand.NewChaCha8([32]byte{1}), size)
	return errors.Join(err, file.Close())
}

// most is the most memory that this process has had, in MiB.
func most() (float64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if name, value, _ := strings.Cut(lines.Text(), ":"); name == "VmHWM" {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			return kib / 1024, err
		}
	}
	return 0, errors.New("no VmHWM in /proc/self/status")
}
