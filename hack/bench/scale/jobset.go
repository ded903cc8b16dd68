package scale

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// jobSetConfig writes the configuration of JobSet's manager: a webhook server that nobody knows of, with a
// certificate of its own, since the manager does not start without.
func (s *server) jobSetConfig() (string, error) {
	ports, err := freeAddresses(2)
	if err != nil {
		return "", err
	}
	_, webhooks, err := net.SplitHostPort(ports[0])
	if err != nil {
		return "", err
	}
	certificates := filepath.Join(s.dir, "jobset-webhook")
	if err := writeCertificate(certificates); err != nil {
		return "", err
	}
	text := fmt.Sprintf(`apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
internalCertManagement: {enable: false}
leaderElection: {leaderElect: false}
health: {healthProbeBindAddress: %q}
webhook: {host: 127.0.0.1, port: %s, certDir: %q}
`, ports[1], webhooks, certificates)
	path := filepath.Join(s.dir, "jobset.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("write JobSet's configuration: %w", err)
	}
	return path, nil
}

// writeCertificate makes a certificate that signs itself, in the files that webhook servers look for.
func writeCertificate(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return fmt.Errorf("make a certificate: %w", err)
	}
	keyBytes, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("make a certificate: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: certificate}, "tls.key": {Type: "PRIVATE KEY", Bytes: keyBytes},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			return fmt.Errorf("write a certificate: %w", err)
		}
	}
	return nil
}
