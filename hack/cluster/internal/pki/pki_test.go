package pki

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
)

func pair(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	both, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	return both.Leaf
}

func TestCertificatesVerify(t *testing.T) {
	dir := t.TempDir()
	if _, err := Create(dir); err != nil {
		t.Fatal(err)
	}
	// A later command goes on with the same authority.
	authority, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []Subject{
		{File: "server", User: "server", Hosts: []string{"kubernetes.default", "10.96.0.1"}},
		{File: "client", User: "system:node:n", Groups: []string{"system:nodes"}},
	} {
		if err := authority.Issue(s); err != nil {
			t.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	roots.AddCert(pair(t, dir, "ca"))
	server, client := pair(t, dir, "server"), pair(t, dir, "client")
	for _, host := range []string{"kubernetes.default", "10.96.0.1"} {
		if _, err := server.Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); err != nil {
			t.Errorf("as %s: %v", host, err)
		}
	}
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if _, err := client.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: usage}); err != nil {
		t.Errorf("client: %v", err)
	}
	if _, err := server.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: usage}); err == nil {
		t.Error("a server's certificate passes for a client's")
	}
	if client.Subject.CommonName != "system:node:n" || client.Subject.Organization[0] != "system:nodes" {
		t.Errorf("the client is %v", client.Subject)
	}
}

func TestKeysAreSecret(t *testing.T) {
	dir := t.TempDir()
	authority, err := Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := authority.WriteSigningKey("tokens"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca.key", "tokens.key"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", name, info.Mode().Perm())
		}
	}
}

func TestOpenWithoutAnAuthority(t *testing.T) {
	if _, err := Open(t.TempDir()); err == nil {
		t.Error("an empty folder passes for an authority")
	}
}
