package rendezvous

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/endpoint"
	"github.com/concertina-dev/concertina/internal/identity"
	"github.com/concertina-dev/concertina/internal/inspection"
	"github.com/concertina-dev/concertina/internal/pki"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// operatorNamespace is where the generated roles expect the operator.
const operatorNamespace = "concertina-system"

// asOperator is an access with the generated roles and no others, not even those of every service account.
func asOperator(t *testing.T) *rest.Config {
	t.Helper()
	const user = "the-operator"
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: operatorNamespace}})
	text, err := os.ReadFile(filepath.Join(root, "config/rbac/role.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bufio.NewReader(bytes.NewReader(text)), 4096)
	for {
		role := &unstructured.Unstructured{}
		if err := decoder.Decode(&role.Object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		create(t, role)
		reference := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: role.GetKind(), Name: role.GetName()}
		subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}
		meta := metav1.ObjectMeta{Namespace: role.GetNamespace(), Name: role.GetName()}
		if role.GetKind() == "ClusterRole" {
			create(t, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: reference, Subjects: subjects})
		} else {
			create(t, &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: reference, Subjects: subjects})
		}
	}
	config := rest.CopyConfig(restConfig)
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	return config
}

// reviews counts the TokenReviews among the requests.
type reviews struct {
	next  http.RoundTripper
	count *atomic.Int32
}

func (r reviews) RoundTrip(request *http.Request) (*http.Response, error) {
	if strings.HasSuffix(request.URL.Path, "/tokenreviews") {
		r.count.Add(1)
	}
	return r.next.RoundTrip(request)
}

// TestTheOperatorsRightsAreEnough plays what the operator does on its own account with the rights that it has,
// and what it has no right to.
func TestTheOperatorsRightsAreEnough(t *testing.T) {
	config := asOperator(t)
	var reviewed atomic.Int32
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return reviews{next, &reviewed} })
	mine, err := newClient(config)
	if err != nil {
		t.Fatal(err)
	}
	// The authorizer's caches hear of the new roles a moment later.
	secret := client.ObjectKey{Namespace: operatorNamespace, Name: "concertina-authority"}
	eventually(t, "the authority is made", func() bool {
		_, err := pki.Load(t.Context(), mine, secret, []string{serviceName}, time.Now)
		return err == nil
	})
	t.Run("the authority is renewed", func(t *testing.T) {
		later := func() time.Time { return time.Now().Add(9*365*24*time.Hour + 24*time.Hour) }
		if _, err := pki.Load(t.Context(), mine, secret, []string{serviceName}, later); err != nil {
			t.Error(err)
		}
	})
	t.Run("no other secret is read", func(t *testing.T) {
		create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: "other"}})
		err := mine.Get(t.Context(), client.ObjectKey{Namespace: operatorNamespace, Name: "other"}, &corev1.Secret{})
		wantForbidden(t, err)
		wantForbidden(t, mine.List(t.Context(), &corev1.SecretList{}, client.InNamespace(operatorNamespace)))
	})
	t.Run("the address of the leader is written", func(t *testing.T) { writeAddress(t, mine) })
	t.Run("a leader is elected", func(t *testing.T) { electLeader(t, config) })
	t.Run("tokens are checked without a review", func(t *testing.T) {
		namespace := newNamespace(t)
		pod := newPod(t, namespace, "digits-1-0")
		token := newToken(t, namespace, pod, identity.Audience)
		authenticator, err := identity.New(config, logr.Discard())
		if err != nil {
			t.Fatal(err)
		}
		who, err := authenticator.Authenticate(t.Context(), token)
		if err != nil || who.PodUID != string(pod.UID) || who.PodName != pod.Name || who.Namespace != namespace {
			t.Fatalf("%+v, %v", who, err)
		}
		if n := reviewed.Load(); n != 0 {
			t.Errorf("%d tokens were reviewed", n)
		}
		forged := token[:len(token)-8] + "AAAAAAAA"
		if _, err := authenticator.Authenticate(t.Context(), forged); !errors.Is(err, rendezvous.ErrUnauthenticated) || reviewed.Load() != 0 {
			t.Errorf("a forged token: %v, %d reviews", err, reviewed.Load())
		}
		r, err := identity.NewReviewer(config)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := r.Authenticate(t.Context(), token); err != nil || again != who || reviewed.Load() != 1 {
			t.Errorf("reviewed: %+v, %v, want %+v", again, err, who)
		}
	})
	t.Run("people are asked who they are and what they may do", func(t *testing.T) { lookAtAJob(t, config) })
	t.Run("rounds are recorded", func(t *testing.T) {
		key := newJob(t, newNamespace(t))
		status := record.Status{Live: mine, Writer: mine.Status()}
		if _, err := status.Record(t.Context(), key, rendezvous.Record{}, rendezvous.Record{Term: 1}); err != nil {
			t.Error(err)
		}
		job := &v1alpha1.TrainingJob{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		wantForbidden(t, mine.Patch(t.Context(), job, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"suspend":true}}`))))
	})
	t.Run("everything is watched", func(t *testing.T) { watchAll(t, config) })
}

func wantForbidden(t *testing.T, err error) {
	t.Helper()
	if !apierrors.IsForbidden(err) {
		t.Errorf("it is not forbidden: %v", err)
	}
}

// lookAtAJob has a service account look at a job before and after it may.
func lookAtAJob(t *testing.T, config *rest.Config) {
	namespace := newNamespace(t)
	page, err := inspection.New(config, func(rendezvous.JobKey) (rendezvous.Inspection, bool) {
		return rendezvous.Inspection{World: &rendezvous.WorldInspection{Round: 7}}, true
	})
	if err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}
	if err := cluster.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	look := func(token string) int {
		r := httptest.NewRequest(http.MethodGet, "/debug/jobs/"+namespace+"/digits", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		answer := httptest.NewRecorder()
		page.ServeHTTP(answer, r)
		return answer.Code
	}
	if code := look(newToken(t, namespace, nil, identity.Audience)); code != http.StatusUnauthorized {
		t.Errorf("a token that is not for the API server is answered with %d", code)
	}
	if code := look(request.Status.Token); code != http.StatusForbidden {
		t.Errorf("before it may, an account is answered with %d", code)
	}
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "viewer"}
	create(t, &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"trainingjobs/status"}, Verbs: []string{"get"},
	}}})
	create(t, &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "viewer"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "default"}}})
	eventually(t, "it may", func() bool { return look(request.Status.Token) == http.StatusOK })
}

// writeAddress makes the EndpointSlice, and writes it again.
func writeAddress(t *testing.T, mine client.Client) {
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		leader := &endpoint.Leader{Client: mine, Service: client.ObjectKey{Namespace: operatorNamespace, Name: "concertina-rendezvous"},
			Address: "10.0.0.7", Port: 8443, PortName: "rendezvous"}
		ended := make(chan error, 1)
		go func() { ended <- leader.Start(ctx) }()
		eventually(t, "the slice is there", func() bool {
			return cluster.Get(t.Context(), leader.Service, &discoveryv1.EndpointSlice{}) == nil
		})
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	create(t, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: "other"}, AddressType: discoveryv1.AddressTypeIPv4})
	other := &endpoint.Leader{Client: mine, Service: client.ObjectKey{Namespace: operatorNamespace, Name: "other"}, Address: "10.0.0.7", Port: 1, PortName: "x"}
	err := other.Write(t.Context())
	if err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("another slice: %v", err)
	}
}

func electLeader(t *testing.T, config *rest.Config) {
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, operatorNamespace, "concertina-operator",
		resourcelock.ResourceLockConfig{Identity: "me"}, config, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me", LeaseDurationSeconds: 1}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := lock.Get(t.Context()); err != nil {
		t.Error(err)
	}
	if err := lock.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me", LeaseDurationSeconds: 2}); err != nil {
		t.Error(err)
	}
}

// watchAll fills a cache with every kind that the operator looks at.
func watchAll(t *testing.T, config *rest.Config) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := cache.New(config, cache.Options{Scheme: cluster.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	for _, kind := range []client.Object{
		&corev1.Node{}, &corev1.Namespace{}, &corev1.Pod{}, &corev1.ResourceQuota{}, &corev1.LimitRange{},
		&schedulingv1.PriorityClass{}, &v1alpha1.TrainingJob{},
	} {
		if _, err := c.GetInformer(ctx, kind); err != nil {
			t.Errorf("%T is not watched: %v", kind, err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
