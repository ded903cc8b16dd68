// Package listingtest has an API server that knows a few lists by heart.
package listingtest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Paths of what is listed.
const (
	Nodes      = "/api/v1/nodes"
	Pods       = "/api/v1/pods"
	Quotas     = "/api/v1/resourcequotas"
	Namespaces = "/api/v1/namespaces"
	Classes    = "/apis/scheduling.k8s.io/v1/priorityclasses"
	Jobs       = "/apis/training.concertina.dev/v1alpha1/trainingjobs"
	// In is put before the plural of a kind in one namespace.
	In = "/namespaces/"
)

// Server answers with what is there for a path, and with an error elsewhere.
type Server struct {
	// Objects are by path: a list, or one object.
	Objects map[string]runtime.Object
	// Codes are answers other than 200, by path.
	Codes map[string]int
}

// Whole is a server of empty lists.
func Whole() *Server {
	s := &Server{Objects: map[string]runtime.Object{}, Codes: map[string]int{}}
	for _, path := range []string{Nodes, Pods, Quotas, Namespaces, Classes, Jobs} {
		s.Objects[path] = &metav1.List{TypeMeta: metav1.TypeMeta{Kind: "List", APIVersion: "v1"}, Items: []runtime.RawExtension{}}
	}
	return s
}

// Start starts it for the time of a test, and returns its address.
func (s *Server) Start(t *testing.T) string {
	t.Helper()
	running := httptest.NewServer(http.HandlerFunc(s.answer))
	t.Cleanup(running.Close)
	return running.URL
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	code, object := s.Codes[r.URL.Path], s.Objects[r.URL.Path]
	if code == 0 && object == nil {
		code = http.StatusNotFound
	}
	if code != 0 {
		w.WriteHeader(code)
		reason := metav1.StatusReason(strings.ReplaceAll(http.StatusText(code), " ", ""))
		object = &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Reason: reason, Code: int32(code), Message: http.StatusText(code)}
	}
	_ = json.NewEncoder(w).Encode(object) // who asked will see that it ends early
}
