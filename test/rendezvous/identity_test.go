package rendezvous

import (
	"errors"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/internal/identity"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

func TestTokenTellsThePod(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	pod := newPod(t, namespace, "digits-1-0")
	token := newToken(t, namespace, pod, identity.Audience)
	who, err := reviewer(t).Authenticate(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	if who.Namespace != namespace || who.PodName != pod.Name || who.PodUID != string(pod.UID) {
		t.Errorf("identity %+v, want pod %s (%s)", who, pod.Name, pod.UID)
	}
	if left := time.Until(who.Expires); left < 9*time.Minute || left > 11*time.Minute {
		t.Errorf("a token of ten minutes expires in %s", left)
	}
}

func TestTokensThatProveNothing(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	pod := newPod(t, namespace, "digits-1-0")
	valid := newToken(t, namespace, pod, identity.Audience)
	deleted := newPod(t, namespace, "digits-1-1")
	orphan := newToken(t, namespace, deleted, identity.Audience)
	if err := cluster.Delete(t.Context(), deleted, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, token, says string }{
		{"nothing", "", "not a service account token"},
		{"a word", "let-me-in", "not a service account token"},
		{"nonsense in the shape of a token", "a.b.c", "not a service account token"},
		{"a very long one", strings.Repeat("a", 20000) + ".b.c", "not a service account token"},
		{"a signature that is not the API server's", valid[:len(valid)-8] + "AAAAAAAA", "not valid"},
		{"for the API server", newToken(t, namespace, pod, "https://kubernetes.default.svc"), "not valid"},
		{"not bound to a pod", newToken(t, namespace, nil, identity.Audience), "not bound to a pod"},
		{"of a pod that was deleted", orphan, "not valid"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			who, err := reviewer(t).Authenticate(t.Context(), tc.token)
			if !errors.Is(err, rendezvous.ErrUnauthenticated) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("identity %+v, error %v, want one with %q", who, err, tc.says)
			}
			if who != (rendezvous.Identity{}) {
				t.Errorf("the identity is %+v all the same", who)
			}
		})
	}
}

// An API server that does not answer says nothing about the token.
func TestTokenThatCannotBeChecked(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	token := newToken(t, namespace, newPod(t, namespace, "digits-1-0"), identity.Audience)
	config := *restConfig
	config.Host = "127.0.0.1:1"
	away, err := identity.NewReviewer(&config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := away.Authenticate(t.Context(), token); err == nil || errors.Is(err, rendezvous.ErrUnauthenticated) {
		t.Errorf("error %v", err)
	}
}
