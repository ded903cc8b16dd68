// Package storage tests checkpoints in storage as it is: a folder, and a real S3 server on this machine.
package storage

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

const (
	accessKey = "tester"
	secretKey = "not-a-secret"
	// azureSecret is what a token has that is part of Azure's URLs.
	azureSecret = "very-secret"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == childArgument {
		child(os.Args[2:])
		return
	}
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": secretKey, "AWS_REGION": "us-east-1",
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_CA_BUNDLE": "", "AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
		"AZURE_STORAGE_ACCOUNT": "tester", "AZURE_STORAGE_KEY": "", "AZURE_STORAGE_SAS_TOKEN": "sv=2024&sig=" + azureSecret,
	} {
		_ = os.Setenv(name, value)
	}
	os.Exit(run(m))
}

// trustedCertificate is the one that this process trusts.
var trustedCertificate tls.Certificate

// run runs the tests with authorities of their own.
func run(m *testing.M) int {
	folder, err := os.MkdirTemp("", "authorities-")
	if err == nil {
		defer func() { _ = os.RemoveAll(folder) }()
		trustedCertificate, err = trust(folder)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// selfSigned makes a certificate for this machine's loopback.
func selfSigned() (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	authority, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{authority}, PrivateKey: key}, authority, err
}

// s3server is versitygw over a folder.
type s3server struct {
	address string
	root    string
}

// startS3 starts a server that is there until the test ends.
func startS3(t *testing.T) *s3server {
	t.Helper()
	cache := os.Getenv("CONCERTINA_CACHE")
	if cache == "" {
		cache = filepath.Join("..", "..", ".cache")
	}
	binary, err := filepath.Abs(filepath.Join(cache, "tools", "versitygw"))
	if err != nil {
		t.Fatal(err)
	}
	s := &s3server{root: t.TempDir()}
	sidecar := t.TempDir()
	for _, name := range []string{bucketName} {
		if err := os.Mkdir(filepath.Join(s.root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.address = freePort(t)
	command := exec.Command(binary, "--port", s.address, "--access", accessKey, "--secret", secretKey, "--quiet",
		"posix", "--sidecar", sidecar, s.root)
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	command.SysProcAttr = dieWithParent()
	if err := command.Start(); err != nil {
		t.Fatalf("start the S3 server (build it with hack/tools/build.sh hack/s3): %v", err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	waitFor(t, "the S3 server answers", func() bool {
		answer, err := http.Get("http://" + s.address)
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return true
	})
	http.DefaultClient.CloseIdleConnections()
	return s
}

const bucketName = "checkpoints"

// url is that of the bucket, reached at an address.
func url(address, prefix string) string {
	return fmt.Sprintf("s3://%s/%s?endpoint=http://%s&use_path_style=true&disable_https=true", bucketName, prefix, address)
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !done() {
		select {
		case <-ctx.Done():
			t.Fatalf("after a minute it is not so that %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
