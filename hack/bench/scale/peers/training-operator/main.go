// Command training-operator runs the PyTorchJob reconciler of Kubeflow's training operator for a bench.
//
// It is wired as in the operator's own main program, but for webhooks: there the manager insists on
// certificates at a fixed path of the machine, and on webhook configurations in the cluster.
package main

import (
	"flag"
	"log"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/flowcontrol"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	"volcano.sh/apis/pkg/apis/scheduling/v1beta1"

	kubeflowv1 "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/config"
	"github.com/kubeflow/training-operator/pkg/controller.v1/common"
	"github.com/kubeflow/training-operator/pkg/controller.v1/pytorch"
)

func main() {
	qps := flag.Int("kube-api-qps", 20, "requests a second at most")
	burst := flag.Int("kube-api-burst", 30, "requests at once at most")
	threads := flag.Int("controller-threads", 1, "jobs that are looked at at a time")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	config.Config.PyTorchInitContainerImage = config.PyTorchInitContainerImageDefault
	config.Config.PyTorchInitContainerTemplateFile = config.PyTorchInitContainerTemplateFileDefault
	config.Config.PyTorchInitContainerMaxTries = config.PyTorchInitContainerMaxTriesDefault
	if err := run(*qps, *burst, *threads); err != nil {
		log.Fatal(err)
	}
}

func run(qps, burst, threads int) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, kubeflowv1.AddToScheme, v1beta1.AddToScheme, schedv1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(float32(qps), burst)
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		return err
	}
	if err := pytorch.NewReconciler(mgr, common.GenNonGangSchedulerSetupFunc()).SetupWithManager(mgr, threads); err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}
