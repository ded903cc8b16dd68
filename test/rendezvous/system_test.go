package rendezvous

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/internal/endpoint"
	"github.com/concertina-dev/concertina/internal/pki"
)

func TestOperatorsAtOnceMakeOneAuthority(t *testing.T) {
	t.Parallel()
	secret := client.ObjectKey{Namespace: newNamespace(t), Name: "authority"}
	bundles := make([]string, 8)
	var all sync.WaitGroup
	for i := range bundles {
		all.Go(func() {
			authority, err := pki.Load(t.Context(), cluster, secret, []string{serviceName}, time.Now)
			if err != nil {
				t.Errorf("operator %d: %v", i, err)
				return
			}
			bundles[i] = string(authority.Bundle())
		})
	}
	all.Wait()
	for i, bundle := range bundles {
		if bundle == "" || bundle != bundles[0] {
			t.Errorf("operator %d has an authority of its own", i)
		}
	}
	stored := &corev1.Secret{}
	if err := cluster.Get(t.Context(), secret, stored); err != nil {
		t.Fatal(err)
	}
	if stored.Type != corev1.SecretTypeTLS {
		t.Errorf("the Secret has the type %s", stored.Type)
	}
}

func TestSliceFollowsTheLeader(t *testing.T) {
	t.Parallel()
	service := client.ObjectKey{Namespace: newNamespace(t), Name: "concertina-rendezvous"}
	slice := &discoveryv1.EndpointSlice{}
	pointsTo := func(address string) func() bool {
		return func() bool {
			*slice = discoveryv1.EndpointSlice{}
			if cluster.Get(t.Context(), service, slice) != nil || len(slice.Endpoints) != 1 || len(slice.Ports) != 1 {
				return false
			}
			one := slice.Endpoints[0]
			return len(one.Addresses) == 1 && one.Addresses[0] == address && *one.Conditions.Ready && *slice.Ports[0].Port == 8443
		}
	}
	lead := func(address string) (stop func()) {
		leader := &endpoint.Leader{Client: cluster, Service: service, Address: address, Port: 8443, PortName: "rendezvous"}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- leader.Start(ctx) }()
		return func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("the leader at %s ended with %v", address, err)
			}
		}
	}
	stop := lead("10.0.0.7")
	eventually(t, "the slice points to the leader", pointsTo("10.0.0.7"))
	if slice.Labels[discoveryv1.LabelServiceName] != service.Name || slice.AddressType != discoveryv1.AddressTypeIPv4 || *slice.Ports[0].Name != "rendezvous" {
		t.Errorf("the slice is %+v", slice)
	}
	stop()

	stop = lead("10.0.0.8")
	defer stop()
	eventually(t, "the slice points to the next leader", pointsTo("10.0.0.8"))
	slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.9.9.9"}}}
	if err := cluster.Update(t.Context(), slice); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the slice is mended", pointsTo("10.0.0.8"))
	if err := cluster.Delete(t.Context(), slice); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the slice is back", pointsTo("10.0.0.8"))
}
