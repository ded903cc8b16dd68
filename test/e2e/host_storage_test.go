package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/test/storage/faulty"
)

const (
	s3Access, s3Secret = "tester", "not-a-secret"
	// host is where pods of the local cluster reach this machine.
	host = "10.244.0.1"
)

// hostStorage is an S3 server beside the nodes, which lose their power without it, and a proxy before it by which it works badly.
type hostStorage struct {
	*faulty.Proxy
	url     string
	folder  string
	address string
	server  *exec.Cmd
	// how is what is wrong with it; empty for nothing.
	how string
}

// startHostStorage starts one with an empty bucket, which works well.
func startHostStorage() *hostStorage {
	GinkgoHelper()
	s := &hostStorage{folder: GinkgoT().TempDir()}
	Expect(os.Mkdir(filepath.Join(s.folder, "checkpoints"), 0o755)).To(Succeed())
	// Its port stays the same when it is started anew.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	s.address = listener.Addr().String()
	Expect(listener.Close()).To(Succeed())
	s.start()
	DeferCleanup(s.kill)

	transport := &http.Transport{}
	DeferCleanup(transport.CloseIdleConnections)
	s.Proxy = faulty.New(s.address, transport, random.Uint64())
	s.Set(faulty.Well)
	front, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	Expect(err).NotTo(HaveOccurred())
	server := &http.Server{Handler: s}
	go func() { _ = server.Serve(front) }()
	DeferCleanup(server.Close)
	s.url = fmt.Sprintf("s3://checkpoints/jobs?endpoint=http://%s&use_path_style=true&disable_https=true&region=us-east-1", front.Addr())
	return s
}

// start starts the server, whatever it has stored before.
func (s *hostStorage) start() {
	GinkgoHelper()
	s.server = exec.Command(filepath.Join(cluster.Cache, "tools", "versitygw"), "--port", s.address, "--access", s3Access, "--secret", s3Secret,
		"--quiet", "posix", "--nometa", s.folder)
	s.server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	Expect(s.server.Start()).To(Succeed(), "hack/tools/build.sh hack/s3 builds the S3 server")
	Eventually(func() error {
		answer, err := http.Get("http://" + s.address)
		if err == nil {
			err = answer.Body.Close()
		}
		return err
	}).Should(Succeed())
}

// kill ends the server at once, as a crash does.
func (s *hostStorage) kill() {
	if s.server != nil {
		_ = s.server.Process.Kill()
		_ = s.server.Wait()
		s.server = nil
	}
}

// heal has the storage work well again.
func (s *hostStorage) heal() {
	GinkgoHelper()
	if s.server == nil {
		s.start()
	}
	s.Set(faulty.Well)
	s.how = ""
}

// secret makes the Secret "s3" in a namespace.
func (s *hostStorage) secret(ctx context.Context, namespace string) {
	GinkgoHelper()
	Expect(cluster.Create(ctx, s3Credentials(namespace))).To(Succeed())
}

func s3Credentials(namespace string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "s3", Namespace: namespace},
		StringData: map[string]string{"AWS_ACCESS_KEY_ID": s3Access, "AWS_SECRET_ACCESS_KEY": s3Secret, "AWS_REGION": "us-east-1"},
	}
}
