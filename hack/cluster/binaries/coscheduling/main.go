// Command coscheduling-scheduler is kube-scheduler with the Coscheduling
// plugin of scheduler-plugins compiled in: it places the pods of a PodGroup
// together or not at all.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	// Registers the type of the plugin's arguments with the configuration's scheme.
	_ "sigs.k8s.io/scheduler-plugins/apis/config/scheme"
	"sigs.k8s.io/scheduler-plugins/pkg/coscheduling"
)

func main() {
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(coscheduling.Name, coscheduling.New))))
}
