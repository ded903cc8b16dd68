package kube

import (
	"context"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/concertina-dev/concertina/hack/cluster/internal/control"
	"github.com/concertina-dev/concertina/hack/cluster/internal/network"
)

// InstallDefinition installs the custom resource definition in a file and
// waits until the server serves it.
func (c Client) InstallDefinition(ctx context.Context, file string, alive func() bool) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("install custom resource: %w", err)
	}
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &object.Object); err != nil {
		return fmt.Errorf("install custom resource: %s: %w", file, err)
	}
	definitions := c.dynamic.Resource(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	})
	_, err = definitions.Create(ctx, object, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("install custom resource %s: %w", object.GetName(), err)
	}
	err = until(ctx, alive, func(ctx context.Context) bool {
		now, err := definitions.Get(ctx, object.GetName(), metav1.GetOptions{})
		return err == nil && established(now)
	})
	if err != nil {
		return fmt.Errorf("custom resource %s is not served: %w", object.GetName(), err)
	}
	return nil
}

func established(definition *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		if condition["type"] == "Established" && condition["status"] == "True" {
			return true
		}
	}
	return false
}

// dnsService is the name that tools expect the DNS service to have.
const dnsService = "kube-dns"

// InstallDNS points the DNS service at CoreDNS, which runs as a process of the
// machine: it needs no pod, no image and no node.
func (c Client) InstallDNS(ctx context.Context) error {
	meta := metav1.ObjectMeta{
		Name: dnsService, Namespace: metav1.NamespaceSystem,
		Labels: map[string]string{"k8s-app": dnsService, discoveryv1.LabelServiceName: dnsService},
	}
	service := &corev1.Service{ObjectMeta: meta}
	service.Spec.ClusterIP = network.DNSIP.String()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  meta,
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{network.HostIP.String()}}},
	}
	for name, protocol := range map[string]corev1.Protocol{"dns": corev1.ProtocolUDP, "dns-tcp": corev1.ProtocolTCP} {
		port := int32(control.DNSPort)
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
			Name: name, Protocol: protocol, Port: 53, TargetPort: intstr.FromInt32(port),
		})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &port})
	}
	if _, err := c.typed.CoreV1().Services(meta.Namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the DNS service: %w", err)
	}
	if _, err := c.typed.DiscoveryV1().EndpointSlices(meta.Namespace).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the DNS service's endpoints: %w", err)
	}
	return nil
}
