package framework

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

// Forward makes a port of a pod reachable on this machine, until stop is called.
func (c *Cluster) Forward(ctx context.Context, namespace, pod string, port int) (address string, stop func(), err error) {
	transport, upgrader, err := spdy.RoundTripperFor(c.Config)
	if err != nil {
		return "", nil, fmt.Errorf("forward a port: %w", err)
	}
	url := c.Clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("portforward").URL()
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	stopping, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", port)}, stopping, ready, io.Discard, io.Discard)
	if err != nil {
		return "", nil, fmt.Errorf("forward port %d of pod %s: %w", port, pod, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	stop = func() {
		close(stopping)
		<-ended //nolint:errcheck // the caller has had its connection by now
	}
	select {
	case <-ready:
	case err := <-ended:
		return "", nil, fmt.Errorf("forward port %d of pod %s: %w", port, pod, errors.Join(err, ctx.Err()))
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		stop()
		return "", nil, err
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0].Local), stop, nil
}
