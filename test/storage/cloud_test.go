package storage

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	neturl "net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/concertina-dev/concertina/internal/checkpoint/storage"
)

// overTLS puts a server that shows a certificate before another one, and returns its address.
func overTLS(t *testing.T, address string, shown *tls.Certificate) (front *httptest.Server) {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	front = httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&neturl.URL{Scheme: "http", Host: address})
			r.Out.Host = r.In.Host // it is signed
		},
	})
	if shown != nil {
		front.TLS = &tls.Config{Certificates: []tls.Certificate{*shown}, MinVersion: tls.VersionTLS12}
	}
	front.StartTLS()
	t.Cleanup(front.Close)
	return front
}

// A storage is one whose certificate is trusted: by the authorities that SSL_CERT_FILE names, here one of the tests.
func TestCertificatesAreChecked(t *testing.T) {
	t.Parallel()
	server := startS3(t)
	secure := func(front *httptest.Server) string {
		return "s3://" + bucketName + "?endpoint=" + front.URL + "&use_path_style=true"
	}
	trusted := trustedCertificate
	s := open(t, secure(overTLS(t, server.address, &trusted)))
	if err := s.Check(t.Context(), job); err != nil {
		t.Errorf("a server whose certificate is trusted: %v", err)
	}
	stranger := open(t, secure(overTLS(t, server.address, nil)))
	if err := stranger.Check(t.Context(), job); !errors.Is(err, storage.ErrRefused) || !strings.Contains(err.Error(), "SSL_CERT_FILE") {
		t.Errorf("a server that nobody knows: %v", err)
	}
}

// trust has this process trust one certificate and no other, before it trusts any.
func trust(folder string) (tls.Certificate, error) {
	certificate, authority, err := selfSigned()
	if err != nil {
		return tls.Certificate{}, err
	}
	file := filepath.Join(folder, "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority})
	return certificate, errors.Join(os.WriteFile(file, block, 0o600), os.Setenv("SSL_CERT_FILE", file), os.Setenv("SSL_CERT_DIR", folder))
}

// Azure's storage is not to be had on this machine: a server that answers as it does when it refuses stands for it.
func TestAzureThatRefuses(t *testing.T) {
	for name, row := range map[string]struct {
		status  int
		code    string
		refused bool
	}{
		"a key that is wrong":          {http.StatusForbidden, "AuthenticationFailed", true},
		"a container that is not":      {http.StatusNotFound, "ContainerNotFound", false},
		"an object that is there":      {http.StatusConflict, "BlobAlreadyExists", false},
		"an object that is there, too": {http.StatusPreconditionFailed, "ConditionNotMet", false},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				asked.Add(1)
				w.Header().Set("x-ms-error-code", row.code)
				w.WriteHeader(row.status)
			}))
			t.Cleanup(server.Close)
			t.Cleanup(http.DefaultClient.CloseIdleConnections)
			t.Setenv("AZURE_STORAGE_SAS_TOKEN", "")
			t.Setenv("AZURE_STORAGE_KEY", "bm90LWEtc2VjcmV0")
			s := open(t, "azblob://checkpoints?protocol=http&localemu=true&domain="+strings.TrimPrefix(server.URL, "http://"))
			err := s.Check(t.Context(), job)
			if err == nil || errors.Is(err, storage.ErrRefused) != row.refused || asked.Load() == 0 {
				t.Errorf("after %d requests: %v", asked.Load(), err)
			}
		})
	}
}

// A token that is part of the URL is in no message: those end in events, which everybody in the namespace reads.
func TestTokensAreInNoMessage(t *testing.T) {
	t.Parallel() // Azure's client asks again for ten seconds.
	s := open(t, "azblob://checkpoints?protocol=http&localemu=true&domain="+freePort(t)).WithPatience(0)
	err := s.Check(t.Context(), job)
	if err == nil || !strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), azureSecret) {
		t.Errorf("where nobody listens: %v", err)
	}
}

// Amazon's own addresses are made of the region.
func TestNoRegion(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	s := open(t, "s3://"+bucketName)
	if err := s.Check(t.Context(), job); !errors.Is(err, storage.ErrRefused) || !strings.Contains(err.Error(), "AWS_REGION") {
		t.Error(err)
	}
}
