package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/deviceerror"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// saidBroken are nodes whose device a program has called broken so long ago.
func saidBroken(p *planner, ago time.Duration, names ...string) {
	for _, name := range names {
		p.plan.Status.AvoidedNodes = append(p.plan.Status.AvoidedNodes, v1alpha1.AvoidedNode{
			Name: name, Failures: ptr.To[int32](1), Devices: ptr.To[int32](1), Until: ptr.To(metav1.NewTime(p.Now.Add(nodeBackOff - ago))),
		})
	}
}

// A program that calls devices broken is believed, until it has said so on one node after the other.
func TestTheWordOfAProgramIsBelievedOnTwoNodesInARow(t *testing.T) {
	const before = 2 * deviceerror.CheckTimeout
	for _, row := range []struct {
		name     string
		said     map[time.Duration][]string
		trains   time.Duration
		nodes    []string
		believed bool
	}{
		{name: "the first", nodes: []string{"n1"}, believed: true},
		{name: "the second", said: map[time.Duration][]string{before: {"n1"}}, nodes: []string{"n2"}, believed: true},
		{name: "the third", said: map[time.Duration][]string{before: {"n1", "n2"}}, nodes: []string{"n3"}},
		{name: "the same two over and over, as where there are no others",
			said: map[time.Duration][]string{before: {"n1", "n2"}}, nodes: []string{"n2"}, believed: true},
		{name: "one of three, without a minute of training between them", said: map[time.Duration][]string{before: {"n1", "n2", "n3"}}, nodes: []string{"n2"}},
		{name: "one of three that was tried again, while the others train",
			said: map[time.Duration][]string{before: {"n1", "n2", "n3"}}, trains: time.Hour, nodes: []string{"n2"}, believed: true},
		{name: "another node while the others train",
			said: map[time.Duration][]string{before: {"n1", "n2", "n3"}}, trains: time.Hour, nodes: []string{"n4"}},
		{name: "many nodes at once, such as those of a rack", nodes: []string{"n1", "n2", "n3", "n4"}, believed: true},
		{name: "many nodes within a minute", said: map[time.Duration][]string{10 * time.Second: {"n1", "n2", "n3"}}, nodes: []string{"n4"}, believed: true},
		{name: "nobody knows where", said: map[time.Duration][]string{before: {"n1", "n2", "n3"}}, believed: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := &planner{State: stateOf(jobWith())}
			if row.trains > 0 {
				meta.SetStatusCondition(&p.Job.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionTraining, Status: metav1.ConditionTrue,
					Reason: v1alpha1.ReasonWorldFormed, LastTransitionTime: metav1.NewTime(p.Now.Add(-row.trains))})
			}
			for ago, names := range row.said {
				saidBroken(p, ago, names...)
			}
			doubt := p.doubtsDevices(row.nodes)
			if believed := doubt == ""; believed != row.believed {
				t.Errorf("believed %v, want %v: %s", believed, row.believed, doubt)
			}
		})
	}
}

// Nodes that failed otherwise tell nothing of devices.
func TestOtherLossesSayNothingOfDevices(t *testing.T) {
	p := &planner{State: stateOf(jobWith())}
	p.avoid([]string{"n1", "n2", "n3"}, "silent")
	p.Now = p.Now.Add(2 * deviceerror.CheckTimeout)
	if doubt := p.doubtsDevices([]string{"n4"}); doubt != "" {
		t.Error(doubt)
	}
}

// A program that ends with 113 for a reason of its own blames each node that it comes to, and spends maxRestarts all the same.
func TestAProgramThatCallsEveryDeviceBrokenFails(t *testing.T) {
	job := jobWith(scheduled, func(job *v1alpha1.TrainingJob) { job.Spec.Failure.MaxRestarts = ptr.To[int32](3) })
	now := start.Add(time.Minute)
	attempts := 0
	for ; findCondition(job, v1alpha1.ConditionFailed) == nil && attempts < 20; attempts++ {
		pod := podOf(job, 1, 0, exited(rendezvous.ExitDevice, now.Add(-time.Minute), "done"), onNode(fmt.Sprintf("n%d", attempts)))
		state := stateOf(job, pod, podOf(job, 1, 1, trainerRuns))
		state.Now, state.World = now, worldOf(1, state.Pods...)
		delete(state.World.Members, string(pod.UID))
		plan := NewPlan(state, settings)
		job.Status.AvoidedNodes, job.Status.Restarts, job.Status.Retries = plan.Status.AvoidedNodes, plan.Status.Restarts, plan.Status.Retries
		job.Status.Conditions = plan.Status.Conditions
		if findCondition(job, v1alpha1.ConditionFailed) == nil {
			scheduled(job)
		}
		now = now.Add(2 * deviceerror.CheckTimeout)
	}
	failed := findCondition(job, v1alpha1.ConditionFailed)
	if failed == nil || !strings.Contains(failed.Message, "has said so on nodes") {
		t.Fatalf("after %d attempts it is %+v", attempts, failed)
	}
	if infrastructure, program := value(job.Status.Restarts.Infrastructure), value(job.Status.Restarts.Program); infrastructure != 2 || program != 3 {
		t.Errorf("%d losses of the infrastructure and %d failures of the program", infrastructure, program)
	}
}

// A job that trains on in place counts as well, and only what the program's word alone says.
func TestTheWordOfAProgramIsCountedInPlace(t *testing.T) {
	for _, row := range []struct {
		name                    string
		code                    int32
		known                   []string
		program, infrastructure int32
		devices                 int32
	}{
		{name: "believed", code: rendezvous.ExitDevice, infrastructure: 1, devices: 1},
		{name: "not believed", code: rendezvous.ExitDevice, known: []string{"n7", "n8"}, program: 1, devices: 1},
		{name: "no such word", code: 1, known: []string{"n7", "n8"}, program: 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			job := trains(3)
			state := elasticState(job, crewOf(job)...)
			lost := state.Pods[2]
			exited(row.code, now, "RuntimeError: no")(lost)
			onNode("n3")(lost)
			for _, name := range row.known {
				job.Status.AvoidedNodes = append(job.Status.AvoidedNodes, v1alpha1.AvoidedNode{
					Name: name, Failures: ptr.To[int32](1), Devices: ptr.To[int32](1), Until: ptr.To(metav1.NewTime(now.Add(-time.Minute)))})
			}
			after(state, rendezvous.ReasonWorkerLost, row.code != rendezvous.ExitDevice, "it ended", lost)
			for range 2 {
				state.Now = state.Now.Add(lastWords)
				look(state)
			}
			restarts := state.Job.Status.Restarts
			if value(restarts.Program) != row.program || value(restarts.Infrastructure) != row.infrastructure {
				t.Errorf("restarts are %+v", restarts)
			}
			var devices int32
			for _, node := range state.Job.Status.AvoidedNodes {
				if node.Name == "n3" {
					devices = value(node.Devices)
				}
			}
			if devices != row.devices {
				t.Errorf("of node n3 it has said so %d times, want %d", devices, row.devices)
			}
		})
	}
}

// A program that was lost by an error of a device may yet find that broken: nothing is counted before it has had the time for it.
func TestAnErrorOfADeviceIsWaitedFor(t *testing.T) {
	const ofDevice = "Traceback (most recent call last):\nRuntimeError: CUDA error: unspecified launch failure"
	for _, row := range []struct {
		name, said              string
		exited                  bool
		ends                    podChange
		at                      time.Duration
		program, infrastructure int32
	}{
		{name: "it says nothing more", said: ofDevice, at: deviceerror.CheckTimeout, program: 1},
		{name: "it finds its device broken", said: ofDevice, ends: exited(rendezvous.ExitDevice, now.Add(40*time.Second), ""), at: 40 * time.Second, infrastructure: 1},
		{name: "it finds its device sound", said: ofDevice, ends: exited(1, now.Add(40*time.Second), ""), at: 40 * time.Second, program: 1},
		{name: "all of its processes have ended", said: ofDevice, exited: true, at: settleTime, program: 1},
		{name: "another error", said: "ValueError: no", at: settleTime, program: 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			job := trains(3)
			state := elasticState(job, crewOf(job)...)
			lost := state.Pods[2]
			trainerRuns(lost)
			after(state, rendezvous.ReasonProgramFailed, true, row.said, lost)
			seen := state.World.Members[string(lost.UID)]
			seen.Exited = row.exited
			state.World.Members[string(lost.UID)] = seen
			state.Now = now.Add(row.at - time.Second)
			if plan := look(state); len(plan.Status.Resizes) > 0 || plan.Status.Restarts != (v1alpha1.RestartsStatus{}) {
				t.Fatalf("after %s: resizes %+v, restarts %+v", row.at-time.Second, plan.Status.Resizes, plan.Status.Restarts)
			}
			if row.ends != nil {
				row.ends(lost)
			}
			state.Now = now.Add(row.at)
			restarts := look(state).Status.Restarts
			if value(restarts.Program) != row.program || value(restarts.Infrastructure) != row.infrastructure {
				t.Errorf("restarts are %+v", restarts)
			}
		})
	}
}
