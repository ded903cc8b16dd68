// Package kube is the demo's and the benches' way to the cluster: clients, and TrainingJobs that
// come from files and go without a trace.
package kube

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// deletePatience is how long a job's workers may take to end after the job was deleted.
const deletePatience = 2 * time.Minute

// Cluster holds the clients of one cluster.
type Cluster struct {
	// Client reads, writes and watches objects, TrainingJobs among them.
	Client client.WithWatch
	// Core reads logs.
	Core kubernetes.Interface
}

// Connect makes the clients for the cluster of a kubeconfig file. It does not talk to the cluster.
func Connect(kubeconfig string) (Cluster, error) {
	log.SetLogger(logr.Discard())
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return Cluster{}, fmt.Errorf("read the kubeconfig %s: %w", kubeconfig, err)
	}
	config.QPS = -1
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return Cluster{}, err
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return Cluster{}, err
	}
	objects, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return Cluster{}, fmt.Errorf("make a client: %w", err)
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return Cluster{}, fmt.Errorf("make a client: %w", err)
	}
	return Cluster{Client: objects, Core: core}, nil
}

// ReadJob reads a TrainingJob from a YAML file, into the namespace default if it names none.
func ReadJob(path string) (*v1alpha1.TrainingJob, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the job: %w", err)
	}
	job := &v1alpha1.TrainingJob{}
	if err := yaml.UnmarshalStrict(text, job); err != nil {
		return nil, fmt.Errorf("read the job %s: %w", path, err)
	}
	if job.Namespace == "" {
		job.Namespace = corev1.NamespaceDefault
	}
	return job, nil
}

// Delete removes a job and waits until neither it nor any worker of it is left. It is no error
// when there is none. Workers that do not end within two minutes are one.
func (c Cluster) Delete(ctx context.Context, job *v1alpha1.TrainingJob) error {
	key := client.ObjectKeyFromObject(job)
	err := c.Client.Delete(ctx, job.DeepCopy(), client.PropagationPolicy("Background"))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete TrainingJob %s in namespace %s: %w", key.Name, key.Namespace, err)
	}
	var left corev1.PodList
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, deletePatience, true, func(ctx context.Context) (bool, error) {
		err := c.Client.Get(ctx, key, &v1alpha1.TrainingJob{})
		if err == nil || client.IgnoreNotFound(err) != nil {
			return false, client.IgnoreNotFound(err)
		}
		err = c.Client.List(ctx, &left, client.InNamespace(key.Namespace), client.MatchingLabels{v1alpha1.LabelJob: key.Name})
		return len(left.Items) == 0, err
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && len(left.Items) > 0:
		return fmt.Errorf("%d workers of TrainingJob %s are still there, the first is %s: see kubectl describe pod %s",
			len(left.Items), key.Name, left.Items[0].Name, left.Items[0].Name)
	case err != nil:
		return fmt.Errorf("wait until TrainingJob %s is gone: %w", key.Name, err)
	}
	return nil
}
