package pki

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

var (
	key   = client.ObjectKey{Namespace: "system", Name: "authority"}
	names = []string{"rendezvous.system.svc", "rendezvous.system.svc.cluster.local"}
)

type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

func load(t *testing.T, c client.Client, clock *clock) *Authority {
	t.Helper()
	authority, err := Load(t.Context(), c, key, names, clock.now)
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

// handshake connects a client that trusts the bundle, at the time of the clock.
func handshake(authority interface{ TLSConfig() *tls.Config }, bundle []byte, name string, at time.Time) error {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", authority.TLSConfig())
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_ = conn.(*tls.Conn).Handshake()
			_ = conn.Close()
		}
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return tls.Client(conn, &tls.Config{RootCAs: pool, ServerName: name, MinVersion: tls.VersionTLS13,
		Time: func() time.Time { return at }}).Handshake()
}

func TestServesUnderTheServiceNamesOnly(t *testing.T) {
	clock := &clock{time.Now()}
	authority := load(t, fake.NewClientBuilder().Build(), clock)
	for _, name := range names {
		if err := handshake(authority, authority.Bundle(), name, clock.Time); err != nil {
			t.Errorf("as %s: %v", name, err)
		}
	}
	if err := handshake(authority, authority.Bundle(), "elsewhere.svc", clock.Time); err == nil {
		t.Error("serves as elsewhere.svc")
	}
	stranger := load(t, fake.NewClientBuilder().Build(), clock)
	if err := handshake(authority, stranger.Bundle(), names[0], clock.Time); err == nil {
		t.Error("trusted by who trusts another authority")
	}
}

func TestOnlyTLS13IsOffered(t *testing.T) {
	config := load(t, fake.NewClientBuilder().Build(), &clock{time.Now()}).TLSConfig()
	if config.MinVersion != tls.VersionTLS13 {
		t.Errorf("versions from %x are spoken", config.MinVersion)
	}
}

func TestServingCertificateIsRenewed(t *testing.T) {
	clock := &clock{time.Now()}
	authority := load(t, fake.NewClientBuilder().Build(), clock)
	for range 24 {
		if err := handshake(authority, authority.Bundle(), names[0], clock.Time); err != nil {
			t.Fatalf("at %s: %v", clock, err)
		}
		clock.Time = clock.Add(15 * 24 * time.Hour)
	}
}

func TestOperatorsAtOnceShareOneAuthority(t *testing.T) {
	c := fake.NewClientBuilder().Build()
	clock := &clock{time.Now()}
	bundles := make([]string, 8)
	var all sync.WaitGroup
	for i := range bundles {
		all.Go(func() {
			authority, err := Load(t.Context(), c, key, names, clock.now)
			if err != nil {
				t.Error(err)
				return
			}
			bundles[i] = string(authority.Bundle())
		})
	}
	all.Wait()
	for _, bundle := range bundles {
		if bundle != bundles[0] {
			t.Fatal("two operators have different authorities")
		}
	}
}

func TestNewAuthorityOverlapsWithTheOld(t *testing.T) {
	c := fake.NewClientBuilder().Build()
	clock := &clock{time.Now()}
	oldBundle := load(t, c, clock).Bundle()

	clock.Time = clock.Add(authorityLife - renewBefore)
	renewed := load(t, c, clock)
	bundle := renewed.Bundle()
	if got := strings.Count(string(bundle), "BEGIN CERTIFICATE"); got != 2 {
		t.Fatalf("the bundle holds %d certificates, want old and new", got)
	}
	if err := handshake(renewed, oldBundle, names[0], clock.Time); err != nil {
		t.Errorf("a pod with the old bundle is turned away at once: %v", err)
	}
	clock.Time = clock.Add(servingLife)
	if err := handshake(renewed, bundle, names[0], clock.Time); err != nil {
		t.Errorf("a pod with the new bundle: %v", err)
	}
	if err := handshake(renewed, oldBundle, names[0], clock.Time); err == nil {
		t.Error("the old authority still signs a month later")
	}
}

func TestBrokenSecretSaysWhatToDo(t *testing.T) {
	broken := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		Data: map[string][]byte{corev1.TLSCertKey: []byte("nonsense"), corev1.TLSPrivateKeyKey: []byte("nonsense")}}
	_, err := Load(t.Context(), fake.NewClientBuilder().WithObjects(broken).Build(), key, names, time.Now)
	if err == nil || !strings.Contains(err.Error(), "system/authority") || !strings.Contains(err.Error(), "delete the Secret") {
		t.Errorf("error is %v", err)
	}
}
