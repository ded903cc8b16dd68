package pki

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
)

const (
	authorityFile = "ca.crt"
	// readEvery is how often the files are looked at. The kubelet brings a new Secret within about a minute.
	readEvery = time.Minute
	// settleFiles is how long a new authority is only trusted, and what it signed is not served yet: until
	// then every pod has the new bundle.
	settleFiles = 10 * time.Minute
)

// Files serves with a certificate that somebody else makes and renews, such as cert-manager. It lies in a
// directory as tls.crt and tls.key, and ca.crt is what agents are to trust, the way the kubelet mounts a
// Secret.
//
// Libraries that watch such files know of the certificate alone. When the authority changes too, agents
// that trust the old one would turn away what the new one signed: so the former certificate is served for
// a while longer, and the bundle has both.
type Files struct {
	dir, name string
	now       func() time.Time

	mu sync.Mutex
	// serving is what is served with, next what will be from nextAt on; nil for none.
	serving, next *tls.Certificate
	nextAt        time.Time
	// bundle is what ca.crt holds now, former what it held before.
	bundle, former []byte
}

// Open reads the directory. The certificate must bear the DNS name, and be signed by what ca.crt holds.
// Errors: files that are missing, or do not go together.
func Open(dir, name string, now func() time.Time) (*Files, error) {
	f := &Files{dir: dir, name: name, now: now}
	return f, f.read()
}

// Start looks at the files until the context ends. It implements manager.Runnable.
func (f *Files) Start(ctx context.Context) error {
	ticker := time.NewTicker(readEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		// What is served with may be good for a while, so trouble here is no reason to stop.
		if err := f.read(); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "the former certificate is served with")
		}
	}
}

// NeedLeaderElection is false: those that wait to lead serve as well.
func (f *Files) NeedLeaderElection() bool { return false }

// Bundle returns the certificates that agents should trust, in PEM.
func (f *Files) Bundle() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return bytes.Join([][]byte{f.bundle, f.former}, nil)
}

// TLSConfig returns the configuration of a server that agents trust.
func (f *Files) TLSConfig() *tls.Config {
	return serverConfig(func() (*tls.Certificate, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.next != nil && !f.now().Before(f.nextAt) {
			f.serving, f.next = f.next, nil
		}
		return f.serving, nil
	})
}

// read takes over what the files hold, if it is good.
func (f *Files) read() error {
	wrong := func(err error) error {
		return fmt.Errorf("certificate in %s: %w", f.dir, err)
	}
	found, err := tls.LoadX509KeyPair(filepath.Join(f.dir, corev1.TLSCertKey), filepath.Join(f.dir, corev1.TLSPrivateKeyKey))
	if err != nil {
		return wrong(err)
	}
	bundle, err := os.ReadFile(filepath.Join(f.dir, authorityFile))
	if err != nil {
		return wrong(fmt.Errorf("%w: agents would not know whom to trust; use an issuer that gives its authority", err))
	}
	if err := f.check(&found, bundle); err != nil {
		return wrong(err)
	}
	f.take(&found, bundle)
	return nil
}

// check says why agents that trust the bundle would turn the certificate away.
func (f *Files) check(found *tls.Certificate, bundle []byte) error {
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return errors.New(authorityFile + " holds no certificate")
	}
	for _, der := range found.Certificate[1:] {
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("%s: %w", corev1.TLSCertKey, err)
		}
		between.AddCert(certificate)
	}
	_, err := found.Leaf.Verify(x509.VerifyOptions{DNSName: f.name, Roots: roots, Intermediates: between, CurrentTime: f.now()})
	return err
}

// take serves with what was found: at once under the same authority, and after a while under another.
func (f *Files) take(found *tls.Certificate, bundle []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	latest := f.next
	if latest == nil {
		latest = f.serving
	}
	if !bytes.HasSuffix(bundle, []byte("\n")) {
		bundle = append(bundle, '\n')
	}
	switch {
	case latest == nil:
		f.serving, f.bundle = found, bundle
	case !bytes.Equal(bundle, f.bundle):
		f.former, f.bundle = f.bundle, bundle
		f.next, f.nextAt = found, earlier(f.now().Add(settleFiles), f.serving.Leaf.NotAfter)
	case latest.Leaf.Equal(found.Leaf):
	case f.next != nil:
		f.next = found
	default:
		f.serving = found
	}
}
