package uploader

import (
	"context"
	"net"
	"net/http"

	"github.com/concertina-dev/concertina/internal/uploader/uploaderv1/uploaderv1connect"
)

// Names of the variables that the operator sets on the uploader's container. The credentials of the storage are
// beside them, as the provider's own tools read them.
const (
	EnvNamespace = "CONCERTINA_NAMESPACE"
	EnvJob       = "CONCERTINA_JOB"
	EnvJobUID    = "CONCERTINA_JOB_UID"
	EnvAttempt   = "CONCERTINA_ATTEMPT"
	EnvMemory    = "CONCERTINA_MEMORY"
	EnvStorage   = "CONCERTINA_STORAGE"
	EnvSocket    = "CONCERTINA_UPLOADER_SOCKET"
)

// NewClient is one for the socket of an uploader. Each call has a connection of its own.
func NewClient(path string) uploaderv1connect.UploaderClient {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}
	return uploaderv1connect.NewUploaderClient(&http.Client{Transport: transport}, "http://uploader")
}
