package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/concertina-dev/concertina/internal/pki"
	"github.com/concertina-dev/concertina/internal/rendezvous/link"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvoustest"
)

func TestOnlyTLS13IsSpoken(t *testing.T) {
	f := serve(t, nil)
	dial := func(newest uint16) error {
		conn, err := tls.Dial("tcp", f.address,
			&tls.Config{RootCAs: f.roots, MinVersion: tls.VersionTLS12, MaxVersion: newest, NextProtos: []string{link.Protocol}})
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	if err := dial(tls.VersionTLS13); err != nil {
		t.Errorf("TLS 1.3: %v", err)
	}
	if err := dial(tls.VersionTLS12); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.2: %v", err)
	}
}

// Neither a new certificate nor a new authority ends a session; who connects afterwards is shown the new one.
func TestCertificatesRotateUnderASession(t *testing.T) {
	const name = "rendezvous.system.svc"
	var now atomic.Pointer[time.Time]
	clock := func() time.Time { return *now.Load() }
	pass := func(d time.Duration) { at := clock().Add(d); now.Store(&at) }
	begin := time.Now()
	now.Store(&begin)
	authority, err := pki.Load(t.Context(), fake.NewClientBuilder().Build(), client.ObjectKey{Namespace: "system", Name: "authority"}, []string{name}, clock)
	if err != nil {
		t.Fatal(err)
	}
	f := serve(t, func(o *Options) { o.TLS = authority.TLSConfig() })
	f.Expect(digits, gangOf(1, "a", "b"))
	trusting := func(bundle []byte) *x509.CertPool {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(bundle)
		return pool
	}
	start := func(pod string, bundle []byte) *rendezvoustest.Agent {
		config := f.config(f.pod(pod))
		config.Roots, config.ServerName, config.Now = trusting(bundle), name, clock
		agent := rendezvoustest.Start(config)
		t.Cleanup(agent.Stop)
		return agent
	}
	shown := func(bundle []byte) (*x509.Certificate, error) {
		conn, err := tls.Dial("tcp", f.address,
			&tls.Config{RootCAs: trusting(bundle), ServerName: name, Time: clock, MinVersion: tls.VersionTLS13, NextProtos: []string{link.Protocol}})
		if err != nil {
			return nil, err
		}
		defer func() { _ = conn.Close() }()
		return conn.ConnectionState().PeerCertificates[0], nil
	}
	bundle := authority.Bundle()
	a, b := start("a", bundle), start("b", bundle)
	for _, agent := range []*rendezvoustest.Agent{a, b} {
		await(t, agent, func(s rendezvoustest.Snapshot) bool { return s.Round == 1 })
	}
	step := uint64(0)
	goesOn := func(after string) {
		t.Helper()
		step++
		a.Step(step)
		b.Step(step)
		f.eventually(t, "the world trains on after "+after, func(o rendezvous.Observation) bool { return o.Progress.Step == step })
		for _, agent := range []*rendezvoustest.Agent{a, b} {
			if s := agent.Snapshot(); s.Last != nil || s.Round != 1 {
				t.Fatalf("after %s a session ended (%v), or the round is %d", after, s.Last, s.Round)
			}
		}
	}
	goesOn("nothing")
	before, err := shown(bundle)
	if err != nil {
		t.Fatal(err)
	}
	pass(25 * 24 * time.Hour)
	renewed, err := shown(bundle)
	if err != nil || renewed.Equal(before) {
		t.Fatalf("the certificate is not renewed: %v", err)
	}
	goesOn("another certificate")

	pass(9*365*24*time.Hour + time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- authority.Start(ctx) }()
	f.eventually(t, "there is another authority", func(rendezvous.Observation) bool {
		return strings.Count(string(authority.Bundle()), "BEGIN CERTIFICATE") == 2
	})
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	both := authority.Bundle()
	if _, err := shown(bundle); err != nil {
		t.Errorf("who has the old bundle is turned away at once: %v", err)
	}
	goesOn("another authority")
	pass(30 * 24 * time.Hour)
	if _, err := shown(both); err != nil {
		t.Errorf("who has the new bundle is turned away: %v", err)
	}
	if _, err := shown(bundle); err == nil {
		t.Error("the old authority signs for ever")
	}
	goesOn("the old authority's end")
}
