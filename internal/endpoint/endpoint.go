// Package endpoint leads the agents to the operator that leads: it keeps the EndpointSlice of a
// Service without a selector pointed at this pod.
package endpoint

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	applydiscoveryv1 "k8s.io/client-go/applyconfigurations/discovery/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	fieldManager = "concertina-endpoint"
	// writeEvery is how often the slice is written again, should somebody have changed it.
	writeEvery = 10 * time.Second
	// tryAgain is when it is written again after a write that failed.
	tryAgain = time.Second
)

// What is created has no name yet as far as rights go. The chart puts its own name of the Service here.
// +kubebuilder:rbac:groups=discovery.k8s.io,namespace=concertina-system,resources=endpointslices,verbs=create
// +kubebuilder:rbac:groups=discovery.k8s.io,namespace=concertina-system,resources=endpointslices,resourceNames=concertina-rendezvous,verbs=patch

// Leader keeps the slice as long as it runs. It is a manager.Runnable for leaders only.
type Leader struct {
	Client client.Client
	// Service is the Service without a selector; the slice has its name.
	Service client.ObjectKey
	// Address is this pod's IP, Port the port of the rendezvous there, named PortName as in the
	// Service.
	Address  string
	Port     int32
	PortName string
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (l *Leader) NeedLeaderElection() bool { return true }

// Start writes the slice at once and then from time to time, until the context ends. A write that fails is tried again
// soon: an operator that ended for it would be no nearer to its agents, and they train on until they find it.
func (l *Leader) Start(ctx context.Context) error {
	for {
		next := writeEvery
		if err := l.Write(ctx); err != nil && ctx.Err() == nil {
			ctrl.LoggerFrom(ctx).Error(err, "agents may not find this operator")
			next = tryAgain
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(next):
		}
	}
}

// Write writes the slice once.
func (l *Leader) Write(ctx context.Context) error {
	family := discoveryv1.AddressTypeIPv4
	for _, c := range l.Address {
		if c == ':' {
			family = discoveryv1.AddressTypeIPv6
		}
	}
	slice := applydiscoveryv1.EndpointSlice(l.Service.Name, l.Service.Namespace).
		WithLabels(map[string]string{
			discoveryv1.LabelServiceName: l.Service.Name,
			discoveryv1.LabelManagedBy:   "concertina-operator",
		}).
		WithAddressType(family).
		WithEndpoints(applydiscoveryv1.Endpoint().WithAddresses(l.Address).
			WithConditions(applydiscoveryv1.EndpointConditions().WithReady(true))).
		WithPorts(applydiscoveryv1.EndpointPort().WithName(l.PortName).WithProtocol(corev1.ProtocolTCP).WithPort(l.Port))
	if err := l.Client.Apply(ctx, slice, client.FieldOwner(fieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("write EndpointSlice %s: %w", l.Service, err)
	}
	return nil
}
