package controller

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/deviceerror"
)

// A program that ends with exit code 113 says that a device of its node is broken. That is no failure of its own, however often a node
// that is broken is tried again; but one that ends so for a reason of its own does on whatever node it is.

// fewDevices is on how many nodes in a row that is believed.
const fewDevices = 2

// avoidDevices keeps the job off nodes, and says why the word of a program that their devices are broken counts as its own failure; empty
// where it does not, or device is false: nobody has said so, or not alone.
func (p *planner) avoidDevices(nodes []string, why string, device bool) (doubt string) {
	if device {
		doubt = p.doubtsDevices(nodes)
	}
	p.avoid(nodes, why)
	for i := range p.plan.Status.AvoidedNodes {
		if node := &p.plan.Status.AvoidedNodes[i]; device && slices.Contains(nodes, node.Name) {
			node.Devices = ptr.To(value(node.Devices) + 1)
		}
	}
	return doubt
}

// doubtsDevices says why it is hardly the devices of these nodes that are broken; empty where it may be. Those of nodes that fail at
// the same time, as those of a rack may, are one look. A node that is known to be broken may be tried again while others train.
func (p *planner) doubtsDevices(nodes []string) string {
	var others []string
	known := 0
	for i := range p.plan.Status.AvoidedNodes {
		node := &p.plan.Status.AvoidedNodes[i]
		switch {
		case value(node.Devices) == 0:
		case slices.Contains(nodes, node.Name):
			known++
		case p.Now.Sub(p.blamedAt(node)) >= deviceerror.CheckTimeout:
			others = append(others, node.Name)
		}
	}
	if len(nodes) == 0 || len(others) < fewDevices || known == len(nodes) && p.trainsWell() {
		return ""
	}
	return fmt.Sprintf("the program has said so on nodes %s before, so it counts as the program's failure", strings.Join(others[:fewDevices], " and "))
}

// trainsWell says whether the job has trained for a while.
func (p *planner) trainsWell() bool {
	training := meta.FindStatusCondition(p.Job.Status.Conditions, v1alpha1.ConditionTraining)
	return training != nil && training.Status == metav1.ConditionTrue && p.Now.Sub(training.LastTransitionTime.Time) >= trainedWell
}
