// Package pki makes the cluster's certificates, keys and kubeconfigs: one
// authority that lives as long as the cluster.
package pki

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

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// lifetime of the authority and of what it signs.
const lifetime = 365 * 24 * time.Hour

// Authority signs certificates and writes them to its folder.
type Authority struct {
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

// CAFile is the name of the authority's own certificate in its folder.
const CAFile = "ca.crt"

// Subject is what a certificate says of its owner.
type Subject struct {
	// File is the name of the pair of files, without .crt and .key.
	File string
	// User and Groups are how the API server knows a client.
	User   string
	Groups []string
	// Hosts are the names and addresses of a server; empty for a client.
	Hosts []string
}

// Create makes a new authority in a folder.
func Create(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create certificate authority: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create certificate authority: %w", err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "concertina local cluster"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	a := &Authority{dir: dir, key: key, cert: template}
	if a.cert, err = a.sign(template, "ca", key); err != nil {
		return nil, err
	}
	return a, nil
}

// Open returns the authority that Create has made in a folder.
func Open(dir string) (*Authority, error) {
	pair := make([][]byte, 2)
	for i, name := range []string{CAFile, "ca.key"} {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("open certificate authority: %w", err)
		}
		block, _ := pem.Decode(raw)
		if block == nil {
			return nil, fmt.Errorf("open certificate authority: %s holds no PEM block", name)
		}
		pair[i] = block.Bytes
	}
	cert, err := x509.ParseCertificate(pair[0])
	if err != nil {
		return nil, fmt.Errorf("open certificate authority: %w", err)
	}
	key, err := x509.ParseECPrivateKey(pair[1])
	if err != nil {
		return nil, fmt.Errorf("open certificate authority: %w", err)
	}
	return &Authority{dir: dir, key: key, cert: cert}, nil
}

// Issue writes the certificate and the key of a subject.
func (a *Authority) Issue(s Subject) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("issue certificate %s: %w", s.File, err)
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: s.User, Organization: s.Groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, host := range s.Hosts {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	_, err = a.sign(template, s.File, key)
	return err
}

func (a *Authority) sign(template *x509.Certificate, file string, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("issue certificate %s: %w", file, err)
	}
	template.SerialNumber = serial
	// A clock that is set back a little must not make the certificate invalid.
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(lifetime)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("issue certificate %s: %w", file, err)
	}
	if err := writePEM(a.path(file+".crt"), "CERTIFICATE", der, 0o644); err != nil {
		return nil, err
	}
	if err := writeKey(a.path(file+".key"), key); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// WriteSigningKey writes a key pair for service account tokens: NAME.key and NAME.pub.
func (a *Authority) WriteSigningKey(name string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("create signing key %s: %w", name, err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return fmt.Errorf("create signing key %s: %w", name, err)
	}
	if err := writePEM(a.path(name+".pub"), "PUBLIC KEY", public, 0o644); err != nil {
		return err
	}
	return writeKey(a.path(name+".key"), key)
}

// WriteKubeconfig issues a client certificate for the subject and writes a
// kubeconfig with it to the file path.
func (a *Authority) WriteKubeconfig(path, server string, s Subject) error {
	if err := a.Issue(s); err != nil {
		return err
	}
	var parts [3][]byte
	for i, name := range []string{CAFile, s.File + ".crt", s.File + ".key"} {
		raw, err := os.ReadFile(a.path(name))
		if err != nil {
			return fmt.Errorf("write kubeconfig: %w", err)
		}
		parts[i] = raw
	}
	const name = "concertina-local"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: parts[0]}
	config.AuthInfos[s.User] = &clientcmdapi.AuthInfo{ClientCertificateData: parts[1], ClientKeyData: parts[2]}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: s.User}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

func (a *Authority) path(name string) string { return filepath.Join(a.dir, name) }

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("write key %s: %w", path, err)
	}
	return writePEM(path, "EC PRIVATE KEY", der, 0o600)
}

func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(path, text, mode); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}
