package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/concertina-dev/concertina/internal/controller"
)

func TestFlagsAreChecked(t *testing.T) {
	good := options{namespace: "concertina-system", podIP: "10.0.0.1", agentImage: "agent", uploaderImage: "uploader", agentFrom: agentFromAuto, drainTaints: controller.DefaultDrainTaints,
		rackLabel: controller.DefaultRackLabel, uploadRate: "0", mostMemory: "64Gi", concurrentJobs: 8, apiQPS: -1, apiBurst: 100, maxConnections: 20000}
	for _, c := range []struct {
		name   string
		change func(*options)
		says   []string
	}{
		{"as they should be", func(*options) {}, nil},
		{"no taints", func(o *options) { o.drainTaints = nil }, nil},
		{"nothing set", func(o *options) { *o = options{} }, []string{"--namespace is not set", "--pod-ip is not set", "--agent-image is not set"}},
		{"a limit of requests", func(o *options) { o.apiQPS = 0.5 }, nil},
		{"no requests", func(o *options) { o.apiQPS, o.apiBurst = 0, 0 }, []string{"--kube-api-qps is 0: it must be above 0, or -1", "--kube-api-burst is 0"}},
		{"fewer than no requests", func(o *options) { o.apiQPS = -2 }, []string{"--kube-api-qps is -2"}},
		{"no jobs and no workers", func(o *options) { o.concurrentJobs, o.maxConnections = 0, -1 },
			[]string{"--concurrent-jobs is 0: it must be at least 1", "--rendezvous-max-connections is -1"}},
		{"no address", func(o *options) { o.podIP = "here" }, []string{`--pod-ip "here" is not an IP address`}},
		{"no way for the agent", func(o *options) { o.agentFrom = "copy" }, []string{`--agent-from is "copy": it can be auto, image-volume or init-container`}},
		{"a rate of uploads", func(o *options) { o.uploadRate = "1.5Gi" }, nil},
		{"no rate", func(o *options) { o.uploadRate = "fast" }, []string{`--checkpoint-upload-rate is "fast": it must be a quantity`}},
		{"a bound of volumes", func(o *options) { o.mostMemory = "1.5Gi" }, nil},
		{"a bound of volumes that hold nothing", func(o *options) { o.mostMemory = "0" }, []string{`--checkpoint-memory-most is "0": it must be a quantity`}},
		{"no bound of volumes", func(o *options) { o.mostMemory = "much" }, []string{`--checkpoint-memory-most is "much"`}},
		{"a rate below nothing", func(o *options) { o.uploadRate = "-1" }, []string{`--checkpoint-upload-rate is "-1"`}},
		{"no racks", func(o *options) { o.rackLabel = "" }, nil},
		{"no key of a label", func(o *options) { o.rackLabel = "rack of mine" }, []string{`--rack-label: "rack of mine" is no key of a label`}},
		{"no key of a taint", func(o *options) { o.drainTaints = []string{"gone", "going:NoSchedule"} }, []string{`--drain-taints: "going:NoSchedule" is no key of a taint`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := good
			c.change(&o)
			err := o.validate()
			if (err != nil) != (len(c.says) > 0) {
				t.Fatalf("error is %v", err)
			}
			for _, part := range c.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error does not say %q: %v", part, err)
				}
			}
		})
	}
}

func TestDrainTaintsOfTheCommandLine(t *testing.T) {
	for argument, want := range map[string][]string{
		"":                       controller.DefaultDrainTaints,
		"--drain-taints=":        {},
		"--drain-taints=a,b/c.d": {"a", "b/c.d"},
	} {
		cmd := command()
		var arguments []string
		if argument != "" {
			arguments = append(arguments, argument)
		}
		if err := cmd.ParseFlags(arguments); err != nil {
			t.Fatal(err)
		}
		if got, err := cmd.Flags().GetStringSlice("drain-taints"); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; want %v", argument, got, err, want)
		}
	}
}
