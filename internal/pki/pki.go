// Package pki has the certificates that the rendezvous serves with: those of an authority of the operator's
// own, for which nothing outside it is needed, or those that somebody else puts into a directory (Files).
//
// The operator's own authority lives in a Secret. A new one is made a year before the old one ends; both are in
// the bundle from then on, and the old one goes on signing for a day, until every pod has the new
// bundle.
package pki

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	renewBefore   = 365 * 24 * time.Hour
	// settle is how long a new authority is only trusted, and does not sign yet.
	settle      = 24 * time.Hour
	servingLife = 30 * 24 * time.Hour
	// servingRenewBefore is how long before its end a serving certificate is replaced.
	servingRenewBefore = 10 * 24 * time.Hour
	// clockSkew allows for clocks of nodes that are behind.
	clockSkew = 5 * time.Minute
	// checkEvery is how often the Secret is looked at.
	checkEvery = time.Hour

	previousCert = "previous.crt"
	previousKey  = "previous.key"
)

// What is created has no name yet as far as rights go.
// +kubebuilder:rbac:groups="",namespace=concertina-system,resources=secrets,verbs=create
// +kubebuilder:rbac:groups="",namespace=concertina-system,resources=secrets,resourceNames=concertina-authority,verbs=get;update

// Authority is the operator's certificate authority.
type Authority struct {
	client client.Client
	secret client.ObjectKey
	names  []string
	now    func() time.Time

	mu      sync.Mutex
	current pair
	former  *pair // the authority before current; nil for none
	serving *tls.Certificate
}

// pair is a certificate with its key.
type pair struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// Load reads the authority from its Secret, or makes both. Several operators may do so at once: all
// end up with the same authority. The certificate that is served with bears the DNS names. The
// client must read from the API server. Errors: a Secret that holds no valid authority, and those of
// the API server.
func Load(ctx context.Context, c client.Client, secret client.ObjectKey, names []string, now func() time.Time) (*Authority, error) {
	a := &Authority{client: c, secret: secret, names: names, now: now}
	return a, a.refresh(ctx)
}

// Start keeps the authority fresh until the context ends. It implements manager.Runnable.
func (a *Authority) Start(ctx context.Context) error {
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		// The first look is at once: another operator may have led, and renewed, since Load.
		// What is in memory is good for a long time, so trouble here is no reason to stop.
		if err := a.refresh(ctx); err != nil && ctx.Err() == nil {
			ctrl.LoggerFrom(ctx).Error(err, "the certificate authority could not be looked after")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Bundle returns the certificates that agents should trust, in PEM.
func (a *Authority) Bundle() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	bundle := encodeCertificate(a.current.certificate)
	if a.former != nil && a.now().Before(a.former.certificate.NotAfter) {
		bundle = append(bundle, encodeCertificate(a.former.certificate)...)
	}
	return bundle
}

// TLSConfig returns the configuration of a server that agents trust.
func (a *Authority) TLSConfig() *tls.Config {
	return serverConfig(a.servingCertificate)
}

// serverConfig is that of a server which agents trust, with the certificate that is served with now.
func serverConfig(certificate func() (*tls.Certificate, error)) *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate() },
	}
}

func (a *Authority) servingCertificate() (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.serving != nil && a.now().Before(a.serving.Leaf.NotAfter.Add(-servingRenewBefore)) {
		return a.serving, nil
	}
	signer := a.current
	if a.former != nil && a.now().Before(a.current.certificate.NotBefore.Add(settle)) && a.now().Before(a.former.certificate.NotAfter) {
		signer = *a.former
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a serving key: %w", err)
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: a.names[0]},
		DNSNames:    a.names,
		NotBefore:   a.now().Add(-clockSkew),
		NotAfter:    earlier(a.now().Add(servingLife), signer.certificate.NotAfter),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	leaf, err := sign(template, signer.certificate, key, signer.key)
	if err != nil {
		return nil, err
	}
	a.serving = &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	return a.serving, nil
}

// refresh reads the Secret, makes it when it is missing and renews it when its time has come.
func (a *Authority) refresh(ctx context.Context) error {
	for {
		secret := &corev1.Secret{}
		err := a.client.Get(ctx, a.secret, secret)
		switch {
		case apierrors.IsNotFound(err):
			err = a.create(ctx)
		case err == nil:
			err = a.adopt(ctx, secret)
		}
		if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
			continue // another operator was faster: take what it wrote
		}
		if err != nil {
			return fmt.Errorf("certificate authority in Secret %s: %w", a.secret, err)
		}
		return nil
	}
}

func (a *Authority) create(ctx context.Context) error {
	fresh, err := newAuthority(a.now())
	if err != nil {
		return err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: a.secret.Namespace, Name: a.secret.Name},
		Type:       corev1.SecretTypeTLS,
	}
	if secret.Data, err = encodeSecret(fresh, nil); err != nil {
		return err
	}
	if err := a.client.Create(ctx, secret); err != nil {
		return err
	}
	a.use(fresh, nil)
	return nil
}

// adopt takes the authority out of the Secret, and renews it when it ends soon.
func (a *Authority) adopt(ctx context.Context, secret *corev1.Secret) error {
	current, err := decodePair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return fmt.Errorf("%w: delete the Secret and restart the operator to have a new one made", err)
	}
	var former *pair
	if len(secret.Data[previousCert]) > 0 {
		old, err := decodePair(secret.Data[previousCert], secret.Data[previousKey])
		if err != nil {
			return fmt.Errorf("former authority: %w: remove %s and %s from the Secret", err, previousCert, previousKey)
		}
		former = &old
	}
	if a.now().Before(current.certificate.NotAfter.Add(-renewBefore)) {
		a.use(current, former)
		return nil
	}
	fresh, err := newAuthority(a.now())
	if err != nil {
		return err
	}
	if secret.Data, err = encodeSecret(fresh, &current); err != nil {
		return err
	}
	if err := a.client.Update(ctx, secret); err != nil {
		return err
	}
	a.use(fresh, &current)
	return nil
}

func (a *Authority) use(current pair, former *pair) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.current.certificate == nil || !a.current.certificate.Equal(current.certificate) {
		a.serving = nil
	}
	a.current, a.former = current, former
}

func newAuthority(now time.Time) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "concertina-operator"},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	certificate, err := sign(template, template, key, key)
	return pair{certificate: certificate, key: key}, err
}

func sign(template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

func encodeSecret(current pair, former *pair) (map[string][]byte, error) {
	key, err := encodeKey(current.key)
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{corev1.TLSCertKey: encodeCertificate(current.certificate), corev1.TLSPrivateKeyKey: key}
	if former != nil {
		if data[previousKey], err = encodeKey(former.key); err != nil {
			return nil, err
		}
		data[previousCert] = encodeCertificate(former.certificate)
	}
	return data, nil
}

func encodeCertificate(certificate *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func decodePair(certificatePEM, keyPEM []byte) (pair, error) {
	loaded, err := tls.X509KeyPair(certificatePEM, keyPEM)
	if err != nil {
		return pair{}, fmt.Errorf("%s and %s are not a certificate and its key: %w", corev1.TLSCertKey, corev1.TLSPrivateKeyKey, err)
	}
	key, ok := loaded.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !loaded.Leaf.IsCA {
		return pair{}, errors.New("the certificate is not an authority with an ECDSA key")
	}
	return pair{certificate: loaded.Leaf, key: key}, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
