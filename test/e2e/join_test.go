package e2e

import (
	"context"
	"crypto/x509"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/identity"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvoustest"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// token asks the API server for a token that is bound to the pod.
func token(ctx context.Context, pod *corev1.Pod, audience string) string {
	GinkgoHelper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences:      []string{audience},
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
	answer, err := cluster.Clientset.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, "default", request, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return answer.Status.Token
}

var _ = Describe("The rendezvous", short, func() {
	It("lets in nobody but the pods of the job", func(ctx context.Context) {
		namespace, elsewhere := newNamespace(ctx), newNamespace(ctx)
		j := submit(ctx, namespace, framework.NewJob("digits", framework.Endless...))
		other := submit(ctx, namespace, framework.NewJob("other", framework.Endless...))
		foreign := submit(ctx, elsewhere, framework.NewJob("digits", framework.Endless...))
		for _, each := range []*job{j, other, foreign} {
			each.trains(ctx)
		}
		door := openDoor(ctx, j)
		pod := j.pods(ctx, 1)[0]
		hello := func() *rendezvousv1.Hello {
			return &rendezvousv1.Hello{Protocol: 2, Namespace: namespace, Job: "digits", Attempt: 1,
				PodName: pod.Name, PodUid: string(pod.UID), Address: "10.0.0.1", MasterPort: 29500}
		}
		for who, knock := range map[string]struct {
			token string
			code  codes.Code
		}{
			"with no token":                    {"", codes.Unauthenticated},
			"with a token that nobody gave":    {"e30.e30.e30", codes.Unauthenticated},
			"with a token for the API server":  {token(ctx, &pod, "https://kubernetes.default.svc"), codes.Unauthenticated},
			"with the token of another job":    {token(ctx, &other.pods(ctx, 1)[0], identity.Audience), codes.PermissionDenied},
			"with the token of another tenant": {token(ctx, &foreign.pods(ctx, 1)[0], identity.Audience), codes.PermissionDenied},
			"with its colleague's token":       {token(ctx, &j.pods(ctx, 1)[1], identity.Audience), codes.PermissionDenied},
		} {
			err := door.knock(ctx, knock.token, hello())
			Expect(status.Code(err)).To(Equal(knock.code), "%s: %v", who, err)
		}
		// The training did not notice.
		for _, each := range []*job{j, other, foreign} {
			each.expectRestarts(ctx, 0, 0)
			Expect(each.get(ctx).Status.World.Round).To(HaveValue(BeEquivalentTo(1)))
		}
	})
})

// door is the rendezvous as seen from this machine.
type door struct{ config rendezvoustest.Config }

// openDoor reaches the leader's rendezvous, and trusts it as the pods of the job do.
func openDoor(ctx context.Context, j *job) door {
	GinkgoHelper()
	operators, err := cluster.OperatorPods(ctx)
	Expect(err).NotTo(HaveOccurred())
	Expect(operators).To(HaveLen(1))
	address, stop, err := cluster.Forward(ctx, framework.OperatorNamespace, operators[0].Name, 8443)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(stop)
	var pods corev1.PodList
	Expect(cluster.List(ctx, &pods, client.InNamespace(j.namespace), client.MatchingLabels{v1alpha1.LabelJob: j.name})).To(Succeed())
	Expect(pods.Items).NotTo(BeEmpty())
	roots := x509.NewCertPool()
	Expect(roots.AppendCertsFromPEM([]byte(pods.Items[0].Annotations[v1alpha1.AnnotationCABundle]))).To(BeTrue())
	return door{config: rendezvoustest.Config{
		Address: address, Roots: roots,
		ServerName: framework.RendezvousService + "." + framework.OperatorNamespace + ".svc",
	}}
}

// knock begins a session and returns how it ends.
func (d door) knock(ctx context.Context, token string, hello *rendezvousv1.Hello) error {
	conn, err := rendezvoustest.Open(ctx, d.config, token)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	// A refusal may come before the report is through; it is then what the answer says.
	_ = conn.SendReport(&rendezvousv1.Report{Sequence: 1, Hello: hello})
	for err == nil {
		_, err = conn.Directive()
	}
	return err
}
