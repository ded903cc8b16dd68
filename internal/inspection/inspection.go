// Package inspection shows what the operator knows of one job's rendezvous, to whom the cluster lets read that
// job's status.
package inspection

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

const (
	// maxAtOnce is how many requests are looked at at a time: each costs the API server two.
	maxAtOnce = 4
	// askTimeout bounds both of them together.
	askTimeout = 10 * time.Second
	// maxTokenBytes is the longest token that is worth a request.
	maxTokenBytes = 16 << 10
	// requestTimeout bounds a connection.
	requestTimeout = 30 * time.Second
)

// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// Page answers GET /debug/jobs/NAMESPACE/NAME with what is known of the job, in JSON. It implements
// http.Handler.
type Page struct {
	inspect func(rendezvous.JobKey) (rendezvous.Inspection, bool)
	users   authenticationclient.TokenReviewInterface
	rights  authorizationclient.SubjectAccessReviewInterface
	atOnce  chan struct{}
	mux     *http.ServeMux
}

// New returns a page of what inspect knows, for those whom the API server of config knows.
func New(config *rest.Config, inspect func(rendezvous.JobKey) (rendezvous.Inspection, bool)) (*Page, error) {
	users, err := authenticationclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for TokenReviews: %w", err)
	}
	rights, err := authorizationclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for SubjectAccessReviews: %w", err)
	}
	return newPage(inspect, users.TokenReviews(), rights.SubjectAccessReviews()), nil
}

func newPage(
	inspect func(rendezvous.JobKey) (rendezvous.Inspection, bool),
	users authenticationclient.TokenReviewInterface, rights authorizationclient.SubjectAccessReviewInterface,
) *Page {
	p := &Page{inspect: inspect, users: users, rights: rights, atOnce: make(chan struct{}, maxAtOnce), mux: http.NewServeMux()}
	p.mux.HandleFunc("GET /debug/jobs/{namespace}/{name}", p.show)
	return p
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.mux.ServeHTTP(w, r) }

func (p *Page) show(w http.ResponseWriter, r *http.Request) {
	select {
	case p.atOnce <- struct{}{}:
		defer func() { <-p.atOnce }()
	default:
		http.Error(w, "too many requests at once: try again", http.StatusTooManyRequests)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	job := rendezvous.JobKey{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
	if code, err := p.allow(ctx, r.Header.Get("Authorization"), job); err != nil {
		http.Error(w, err.Error(), code)
		return
	}
	found, ok := p.inspect(job)
	if !ok {
		http.Error(w, fmt.Sprintf("no gang of job %s is expected", job), http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(found) // whoever asked may have gone
}

// allow says with which code and why somebody may not look at a job; nil when they may.
func (p *Page) allow(ctx context.Context, authorization string, job rendezvous.JobKey) (int, error) {
	scheme, token, _ := strings.Cut(authorization, " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxTokenBytes {
		return http.StatusUnauthorized, errors.New("send the header Authorization: Bearer TOKEN, with a token of the API server's")
	}
	review, err := p.users.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return http.StatusServiceUnavailable, errors.New("the API server could not be asked who you are: try again")
	}
	if !review.Status.Authenticated {
		return http.StatusUnauthorized, errors.New("the API server does not know this token")
	}
	user := review.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	access, err := p.rights.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "get", Group: v1alpha1.GroupVersion.Group, Resource: "trainingjobs", Subresource: "status",
			Namespace: job.Namespace, Name: job.Name,
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		return http.StatusServiceUnavailable, errors.New("the API server could not be asked what you may do: try again")
	}
	if !access.Status.Allowed {
		return http.StatusForbidden, fmt.Errorf("%q may not get trainingjobs/status of %s", user.Username, job)
	}
	return 0, nil
}

// Server serves a page over TLS. It is a manager.Runnable for leaders only: others know of no job.
type Server struct {
	// Address is host:port.
	Address string
	TLS     *tls.Config
	Page    *Page
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (s *Server) NeedLeaderElection() bool { return true }

// Start serves until the context ends. It fails when the address cannot be listened on.
func (s *Server) Start(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.Address)
	if err != nil {
		return fmt.Errorf("listen for those who look at jobs: %w", err)
	}
	return s.serve(ctx, listener)
}

func (s *Server) serve(ctx context.Context, listener net.Listener) error {
	secured := s.TLS.Clone()
	secured.MinVersion = tls.VersionTLS13
	secured.NextProtos = []string{"http/1.1"}
	server := &http.Server{
		Handler: s.Page, TLSConfig: secured,
		ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, MaxHeaderBytes: 32 << 10,
		ErrorLog: log.New(io.Discard, "", 0), // strangers' failed handshakes
	}
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(listener, "", "") }()
	select {
	case err := <-served:
		return fmt.Errorf("stopped serving those who look at jobs: %w", err)
	case <-ctx.Done():
	}
	err := server.Close()
	if end := <-served; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	return err
}
