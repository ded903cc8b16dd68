package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// issuer makes certificates for the files.
type issuer struct{ pair }

func newIssuer(t *testing.T, clock *clock) issuer {
	t.Helper()
	made, err := newAuthority(clock.Time)
	if err != nil {
		t.Fatal(err)
	}
	return issuer{made}
}

// write puts a certificate for a name into the directory, and what to trust.
func (i issuer) write(t *testing.T, clock *clock, dir, name string, trust pair) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := sign(&x509.Certificate{
		DNSNames: []string{name}, NotBefore: clock.Time, NotAfter: clock.Add(90 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, i.certificate, key, i.key)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := encodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string][]byte{
		"tls.crt": encodeCertificate(leaf), "tls.key": pem, "ca.crt": encodeCertificate(trust.certificate),
	} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFilesAreServed(t *testing.T) {
	clock, dir := &clock{time.Now()}, t.TempDir()
	ca := newIssuer(t, clock)
	ca.write(t, clock, dir, names[0], ca.pair)
	files, err := Open(dir, names[0], clock.now)
	if err != nil {
		t.Fatal(err)
	}
	bundle := files.Bundle()
	for range 4 { // the last three are renewed
		if err := handshake(files, bundle, names[0], clock.Time); err != nil {
			t.Fatalf("at %s: %v", clock, err)
		}
		clock.Time = clock.Add(60 * 24 * time.Hour)
		ca.write(t, clock, dir, names[0], ca.pair)
		if err := files.read(); err != nil {
			t.Fatal(err)
		}
	}
	if string(files.Bundle()) != string(bundle) {
		t.Error("another certificate of the same authority changes what agents trust")
	}
}

func TestAnotherAuthorityOverlaps(t *testing.T) {
	clock, dir := &clock{time.Now()}, t.TempDir()
	former, next := newIssuer(t, clock), newIssuer(t, clock)
	former.write(t, clock, dir, names[0], former.pair)
	files, err := Open(dir, names[0], clock.now)
	if err != nil {
		t.Fatal(err)
	}
	before := files.Bundle()
	clock.Time = clock.Add(60 * 24 * time.Hour)
	next.write(t, clock, dir, names[0], next.pair)
	for range 2 { // what is read once more changes nothing
		if err := files.read(); err != nil {
			t.Fatal(err)
		}
	}
	both := files.Bundle()
	if got := strings.Count(string(both), "BEGIN CERTIFICATE"); got != 2 {
		t.Fatalf("the bundle holds %d certificates, want both authorities", got)
	}
	if err := handshake(files, before, names[0], clock.Time); err != nil {
		t.Errorf("a pod with the former bundle is turned away at once: %v", err)
	}
	clock.Time = clock.Add(settleFiles)
	if err := handshake(files, both, names[0], clock.Time); err != nil {
		t.Errorf("a pod with both: %v", err)
	}
	if err := handshake(files, before, names[0], clock.Time); err == nil {
		t.Error("the former certificate is served after pods have the bundle with both")
	}
}

func TestFilesThatDoNotGoTogether(t *testing.T) {
	clock, dir := &clock{time.Now()}, t.TempDir()
	ca, other := newIssuer(t, clock), newIssuer(t, clock)
	ca.write(t, clock, dir, names[0], ca.pair)
	files, err := Open(dir, names[0], clock.now)
	if err != nil {
		t.Fatal(err)
	}
	good := files.Bundle()
	for name, spoil := range map[string]struct {
		do   func(dir string)
		says string
	}{
		"another name":      {func(dir string) { ca.write(t, clock, dir, "elsewhere.svc", ca.pair) }, "elsewhere.svc"},
		"another authority": {func(dir string) { ca.write(t, clock, dir, names[0], other.pair) }, "unknown authority"},
		"no authority":      {func(dir string) { _ = os.Remove(filepath.Join(dir, "ca.crt")) }, "use an issuer that gives its authority"},
		"an empty authority": {func(dir string) { _ = os.WriteFile(filepath.Join(dir, "ca.crt"), nil, 0o600) },
			"ca.crt holds no certificate"},
		"no key": {func(dir string) { _ = os.Remove(filepath.Join(dir, "tls.key")) }, "tls.key"},
	} {
		ca.write(t, clock, dir, names[0], ca.pair)
		spoil.do(dir)
		if err := files.read(); err == nil || !strings.Contains(err.Error(), spoil.says) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Open(dir, names[0], clock.now); err == nil {
			t.Errorf("%s: an operator starts with it", name)
		}
		if err := handshake(files, good, names[0], clock.Time); err != nil {
			t.Errorf("%s: the former certificate is not served any more: %v", name, err)
		}
	}
}
