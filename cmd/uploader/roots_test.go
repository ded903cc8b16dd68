package main

import (
	"bytes"
	"crypto/x509"
	"os"
	"os/exec"
	"testing"
)

// inEmptyImage has the test look at what it trusts where there is no file of authorities.
const inEmptyImage = "CONCERTINA_TEST_IN_EMPTY_IMAGE"

// The uploader's image has no file but the uploader, and it is to reach storages that show certificates.
func TestItTrustsPublicAuthoritiesWithoutAnyFile(t *testing.T) {
	if os.Getenv(inEmptyImage) != "" {
		pool, err := x509.SystemCertPool()
		if err != nil || pool.Equal(x509.NewCertPool()) {
			t.Errorf("it trusts nobody (%v)", err)
		}
		return
	}
	command := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	command.Env = append(os.Environ(), inEmptyImage+"=1", "SSL_CERT_FILE=/nowhere/file", "SSL_CERT_DIR=/nowhere")
	out, err := command.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("PASS")) {
		t.Errorf("%v\n%s", err, out)
	}
}
