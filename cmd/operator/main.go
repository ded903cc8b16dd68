// The operator of Concertina: it runs TrainingJobs, and the rendezvous of their workers.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap/zapcore"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/controller"
	"github.com/concertina-dev/concertina/internal/endpoint"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/gang"
	"github.com/concertina-dev/concertina/internal/identity"
	"github.com/concertina-dev/concertina/internal/inspection"
	"github.com/concertina-dev/concertina/internal/pki"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/release"
	"github.com/concertina-dev/concertina/internal/rendezvous/server"
	"github.com/concertina-dev/concertina/internal/tracing"
)

// What is created has no name yet as far as rights go.
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=concertina-system,resources=leases,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=concertina-system,resources=leases,resourceNames=concertina-operator,verbs=get;update
// +kubebuilder:rbac:groups="",namespace=concertina-system,resources=events,verbs=create;patch

const (
	leaderLease     = "concertina-operator"
	authoritySecret = "concertina-authority"
	rendezvousPort  = "rendezvous" // name of the port in the Service and its slice

	// A crashed leader's lease is free after leaseDuration; its jobs train on meanwhile.
	leaseDuration = 10 * time.Second
	renewDeadline = 7 * time.Second
	retryPeriod   = 1 * time.Second
)

// The values of --agent-from.
const (
	agentFromAuto   = "auto"
	agentFromVolume = "image-volume"
	agentFromInit   = "init-container"
)

type options struct {
	namespace, podIP, agentImage, uploaderImage, rendezvousService string
	agentFrom                                                      string
	rendezvousBind, healthBind, metricsBind, pprofBind             string
	debugBind, fleetConfig, certificate                            string
	leaderElect                                                    bool
	drainTaints                                                    []string
	rackLabel, uploadRate, mostMemory                              string
	concurrentJobs, apiBurst, maxConnections                       int
	apiQPS                                                         float32
	logging                                                        zap.Options
}

func main() {
	if err := command().Execute(); err != nil {
		os.Exit(1)
	}
}

func command() *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:           "operator",
		Short:         "Runs TrainingJobs and the rendezvous of their workers.",
		Version:       release.Get().String(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: false,
		RunE: func(*cobra.Command, []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			ctrl.SetLogger(zap.New(zap.UseFlagOptions(&o.logging)))
			return run(ctrl.SetupSignalHandler(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.namespace, "namespace", os.Getenv("POD_NAMESPACE"), "namespace that the operator runs in (default $POD_NAMESPACE)")
	f.StringVar(&o.podIP, "pod-ip", os.Getenv("POD_IP"), "address under which agents reach this pod (default $POD_IP)")
	f.StringVar(&o.agentImage, "agent-image", "", "image that holds the agent as /agent")
	f.StringVar(&o.agentFrom, "agent-from", agentFromAuto, "how the agent comes into workers: image-volume, which saves a container and a second but needs Kubernetes 1.35 with containerd 2.1 or CRI-O 1.33 on all nodes; init-container; or auto: the first where all nodes are known to have that when the operator starts")
	f.StringVar(&o.uploaderImage, "uploader-image", "", "image of the uploader, which runs in workers of jobs that have a storage")
	f.StringVar(&o.rendezvousService, "rendezvous-service", "concertina-rendezvous", "Service without a selector that leads agents to the leader")
	f.StringVar(&o.rendezvousBind, "rendezvous-bind-address", ":8443", "address of the rendezvous")
	f.StringVar(&o.certificate, "rendezvous-certificate", "", "directory with tls.crt, tls.key and ca.crt, for the rendezvous Service's name, to serve with; empty for an authority of the operator's own")
	f.StringVar(&o.healthBind, "health-probe-bind-address", ":8081", "address of /healthz and /readyz")
	f.StringVar(&o.metricsBind, "metrics-bind-address", ":8080", "address of /metrics; 0 for none")
	f.StringVar(&o.pprofBind, "pprof-bind-address", "", "address of Go's profiles under /debug/pprof, such as 127.0.0.1:6060: anybody who reaches it may read them; empty for none")
	f.StringVar(&o.debugBind, "debug-bind-address", "", "address of /debug/jobs/NAMESPACE/NAME, such as 127.0.0.1:8444: what is known of a job's rendezvous, over TLS, for whoever may get trainingjobs/status there; empty for none")
	f.StringSliceVar(&o.drainTaints, "drain-taints", controller.DefaultDrainTaints, "keys of taints that announce the end of a node: workers leave it")
	f.StringVar(&o.rackLabel, "rack-label", controller.DefaultRackLabel, "label by which nodes say in which rack they are: shares of a snapshot are held in several racks; empty for none")
	f.StringVar(&o.uploadRate, "checkpoint-upload-rate", "0", "bytes of checkpoints that each worker may upload in a second, such as 50Mi, as long as nobody waits for them; 0 for no limit")
	f.StringVar(&o.mostMemory, "checkpoint-memory-most", "64Gi", "size of the volume for snapshots that a worker gets at most with checkpoint.memory: auto, since a program may say anything of its state; 1Mi or more")
	f.StringVar(&o.fleetConfig, "fleet-config", "", "file with the settings of how jobs share the cluster (docs/fleet.md); empty for the defaults")
	f.IntVar(&o.concurrentJobs, "concurrent-jobs", controller.DefaultConcurrentJobs, "jobs that are looked at at a time")
	// The API server's own fairness limits us better than a bucket on this side.
	f.Float32Var(&o.apiQPS, "kube-api-qps", -1, "requests to the API server in a second, of each kind of client; -1 for no limit")
	f.IntVar(&o.apiBurst, "kube-api-burst", 100, "requests to the API server at once beyond --kube-api-qps")
	f.IntVar(&o.maxConnections, "rendezvous-max-connections", server.DefaultMaxConnections, "connections of workers that are open at a time; each worker needs one")
	f.BoolVar(&o.leaderElect, "leader-elect", true, "elect one leader among several operators")
	// What changes a world takes milliseconds.
	o.logging.TimeEncoder = zapcore.TimeEncoderOfLayout("2006-01-02T15:04:05.000Z07:00")
	logging := flag.NewFlagSet("logging", flag.ContinueOnError)
	o.logging.BindFlags(logging)
	f.AddGoFlagSet(logging)
	return cmd
}

func (o *options) validate() error {
	var wrong []error
	for flag, value := range map[string]string{"--namespace": o.namespace, "--pod-ip": o.podIP, "--agent-image": o.agentImage, "--uploader-image": o.uploaderImage} {
		if value == "" {
			wrong = append(wrong, fmt.Errorf("%s is not set", flag))
		}
	}
	if !slices.Contains([]string{agentFromAuto, agentFromVolume, agentFromInit}, o.agentFrom) {
		wrong = append(wrong, fmt.Errorf("--agent-from is %q: it can be %s, %s or %s", o.agentFrom, agentFromAuto, agentFromVolume, agentFromInit))
	}
	if o.podIP != "" && net.ParseIP(o.podIP) == nil {
		wrong = append(wrong, fmt.Errorf("--pod-ip %q is not an IP address", o.podIP))
	}
	for _, key := range o.drainTaints {
		if faults := validation.IsQualifiedName(key); len(faults) > 0 {
			wrong = append(wrong, fmt.Errorf("--drain-taints: %q is no key of a taint: %s", key, strings.Join(faults, "; ")))
		}
	}
	if o.rackLabel != "" {
		if faults := validation.IsQualifiedName(o.rackLabel); len(faults) > 0 {
			wrong = append(wrong, fmt.Errorf("--rack-label: %q is no key of a label: %s", o.rackLabel, strings.Join(faults, "; ")))
		}
	}
	if _, err := o.bytesPerSecond(); err != nil {
		wrong = append(wrong, err)
	}
	if _, err := o.mostVolume(); err != nil {
		wrong = append(wrong, err)
	}
	if o.concurrentJobs < 1 {
		wrong = append(wrong, fmt.Errorf("--concurrent-jobs is %d: it must be at least 1", o.concurrentJobs))
	}
	if o.apiQPS != -1 && o.apiQPS <= 0 {
		wrong = append(wrong, fmt.Errorf("--kube-api-qps is %g: it must be above 0, or -1 for no limit", o.apiQPS))
	}
	if o.apiBurst < 1 {
		wrong = append(wrong, fmt.Errorf("--kube-api-burst is %d: it must be at least 1", o.apiBurst))
	}
	if o.maxConnections < 1 {
		wrong = append(wrong, fmt.Errorf("--rendezvous-max-connections is %d: it must be at least 1", o.maxConnections))
	}
	return errors.Join(wrong...)
}

// bytesPerSecond reads --checkpoint-upload-rate.
func (o *options) bytesPerSecond() (uint64, error) {
	rate, err := resource.ParseQuantity(o.uploadRate)
	if err != nil || rate.Sign() < 0 {
		return 0, fmt.Errorf("--checkpoint-upload-rate is %q: it must be a quantity of bytes such as 50Mi, or 0 for no limit", o.uploadRate)
	}
	return uint64(rate.Value()), nil
}

// mostVolume reads --checkpoint-memory-most.
func (o *options) mostVolume() (int64, error) {
	most, err := resource.ParseQuantity(o.mostMemory)
	if err != nil || most.Value() < 1<<20 {
		return 0, fmt.Errorf("--checkpoint-memory-most is %q: it must be a quantity of bytes such as 64Gi, 1Mi or more", o.mostMemory)
	}
	return most.Value(), nil
}

func run(ctx context.Context, o options) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, schedv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("build the scheme: %w", err)
		}
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	config.QPS, config.Burst = o.apiQPS, o.apiBurst
	// The API server is near: both sides would spend more on packing than the network saves.
	config.DisableCompression = true
	mgr, err := newManager(config, scheme, o)
	if err != nil {
		return err
	}
	live, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("make an API client: %w", err)
	}
	traces, err := tracing.Open(ctx, mgr.GetLogger().WithName("tracing"))
	if err != nil {
		return err
	}
	if err := wire(ctx, mgr, live, traces.Tracer(), o); err != nil {
		return errors.Join(err, traces.Close())
	}
	err = mgr.Start(ctx)
	if late := traces.Close(); late != nil {
		mgr.GetLogger().Info("the last traces are lost", "cause", late.Error())
	}
	return err
}

// newManager makes the manager, whose cache has of pods, which are many, only what is read.
func newManager(config *rest.Config, scheme *runtime.Scheme, o options) (manager.Manager, error) {
	lease, renew, retry := leaseDuration, renewDeadline, retryPeriod
	mgr, err := ctrl.NewManager(config, manager.Options{
		Scheme: scheme,
		Cache: cache.Options{
			ByObject:         map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: controller.SlimPod}},
			DefaultTransform: cache.TransformStripManagedFields(),
		},
		Client:                        client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&schedv1alpha1.PodGroup{}, &corev1.Secret{}}}},
		Metrics:                       metricsserver.Options{BindAddress: o.metricsBind},
		PprofBindAddress:              o.pprofBind,
		HealthProbeBindAddress:        o.healthBind,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              leaderLease,
		LeaderElectionNamespace:       o.namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &lease,
		RenewDeadline:                 &renew,
		RetryPeriod:                   &retry,
	})
	if err != nil {
		return nil, fmt.Errorf("set up the manager: %w", err)
	}
	for _, add := range []func(string, healthz.Checker) error{mgr.AddHealthzCheck, mgr.AddReadyzCheck} {
		if err := add("ping", healthz.Ping); err != nil {
			return nil, fmt.Errorf("set up health checks: %w", err)
		}
	}
	return mgr, nil
}

// wire puts the parts together.
func wire(ctx context.Context, mgr manager.Manager, live client.Client, tracer trace.Tracer, o options) error {
	_, portText, err := net.SplitHostPort(o.rendezvousBind)
	if err != nil {
		return fmt.Errorf("--rendezvous-bind-address: %w", err)
	}
	port, err := strconv.ParseInt(portText, 10, 32)
	if err != nil {
		return fmt.Errorf("--rendezvous-bind-address: port %q: %w", portText, err)
	}
	host := fmt.Sprintf("%s.%s.svc", o.rendezvousService, o.namespace)
	authority, err := o.authority(ctx, live, host)
	if err != nil {
		return err
	}
	authenticator, err := identity.New(mgr.GetConfig(), mgr.GetLogger().WithName("identity"))
	if err != nil {
		return err
	}
	if err := metrics.Registry.Register(authenticator); err != nil {
		return fmt.Errorf("register the metrics of tokens: %w", err)
	}
	server := server.NewServer(server.Options{
		Address:       o.rendezvousBind,
		TLS:           authority.TLSConfig(),
		Authenticator: authenticator,
		Recorder:      record.Status{Live: live, Writer: live.Status()},
		Logger:        mgr.GetLogger().WithName("rendezvous"),
		Registerer:    metrics.Registry,
		Tracer:        tracer,

		MaxConnections: o.maxConnections,
	})
	leader := &endpoint.Leader{
		Client: live, Service: client.ObjectKey{Namespace: o.namespace, Name: o.rendezvousService},
		Address: o.podIP, Port: int32(port), PortName: rendezvousPort,
	}
	parts := []manager.Runnable{authority, server, leader}
	if o.debugBind != "" {
		page, err := inspection.New(mgr.GetConfig(), server.Inspect)
		if err != nil {
			return err
		}
		parts = append(parts, &inspection.Server{Address: o.debugBind, TLS: authority.TLSConfig(), Page: page})
	}
	for _, part := range parts {
		if err := mgr.Add(part); err != nil {
			return fmt.Errorf("add to the manager: %w", err)
		}
	}
	return wireController(ctx, mgr, live, o, authority, server, net.JoinHostPort(host, portText))
}

// authority is what workers trust the operator by.
type authority interface {
	manager.Runnable
	TLSConfig() *tls.Config
	Bundle() []byte
}

func (o *options) authority(ctx context.Context, live client.Client, host string) (authority, error) {
	if o.certificate == "" {
		return pki.Load(ctx, live, client.ObjectKey{Namespace: o.namespace, Name: authoritySecret}, []string{host}, time.Now)
	}
	files, err := pki.Open(o.certificate, host, time.Now)
	if err != nil {
		return nil, fmt.Errorf("--rendezvous-certificate: %w", err)
	}
	return files, nil
}

// imageVolumes says whether workers have the agent as a volume of its image.
func (o *options) imageVolumes(ctx context.Context, live client.Client) (bool, error) {
	if o.agentFrom != agentFromAuto {
		return o.agentFrom == agentFromVolume, nil
	}
	var nodes corev1.NodeList
	if err := live.List(ctx, &nodes); err != nil {
		return false, fmt.Errorf("list the nodes, to see whether they mount images (--agent-from): %w", err)
	}
	for i := range nodes.Items {
		if node := &nodes.Items[i]; !controller.MountsImages(node) {
			ctrl.Log.Info("the agent comes into workers by an init container: a node does not mount images, as far as it says",
				"node", node.Name, "kubelet", node.Status.NodeInfo.KubeletVersion, "runtime", node.Status.NodeInfo.ContainerRuntimeVersion)
			return false, nil
		}
	}
	return len(nodes.Items) > 0, nil
}

// wireController puts the controller of jobs together, and the planner that it asks.
func wireController(
	ctx context.Context, mgr manager.Manager, live client.Client, o options, authority authority, server *server.Server, url string,
) error {
	if err := controller.RegisterBuildInfo(metrics.Registry); err != nil {
		return err
	}
	jobFigures, err := controller.NewMetrics(metrics.Registry)
	if err != nil {
		return err
	}
	settings, err := fleet.LoadSettings(o.fleetConfig)
	if err != nil {
		return fmt.Errorf("--fleet-config: %w", err)
	}
	mounts, err := o.imageVolumes(ctx, live)
	if err != nil {
		return err
	}
	rate, err := o.bytesPerSecond()
	if err != nil {
		return err
	}
	most, err := o.mostVolume()
	if err != nil {
		return err
	}
	pods := controller.PodSettings{
		AgentImage: o.agentImage, ImageVolume: mounts, UploaderImage: o.uploaderImage, RendezvousAddress: url, MostMemory: most,
	}
	cluster := fleet.New(fleet.Options{
		Settings: settings, DrainTaints: o.drainTaints, Shapes: controller.Shapes(pods), AsksFirst: true, Plan: new(allocation.Planner).Plan,
	})
	if err := cluster.AddTo(mgr); err != nil {
		return err
	}
	if err := metrics.Registry.Register(cluster); err != nil {
		return fmt.Errorf("register the metrics of the fleet: %w", err)
	}
	reconciler := &controller.Reconciler{
		Client:      mgr.GetClient(),
		Fleet:       cluster,
		DrainTaints: o.drainTaints,
		RackLabel:   o.rackLabel,
		UploadRate:  rate,
		Live:        live,
		AsksFirst:   true,
		Gang:        gang.Coscheduling{Client: mgr.GetClient()},
		Rendezvous:  server,
		Events:      mgr.GetEventRecorder("concertina"),
		CABundle:    authority.Bundle,
		Now:         time.Now,
		Pods:        pods,
		Metrics:     jobFigures,

		ReclaimTimeout: settings.ReclaimTimeout.Duration,
		AttemptTimeout: settings.AttemptTimeout.Duration,
		ConcurrentJobs: o.concurrentJobs,
	}
	return reconciler.SetupWithManager(mgr)
}
