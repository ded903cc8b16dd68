package replay

import (
	"fmt"
	"slices"
)

// Placement is how many workers are on each node, in the order in which the job came to them. A worker holds one
// device.
type Placement []int

// Workers is how many workers there are.
func (p Placement) Workers() int {
	sum := 0
	for _, n := range p {
		sum += n
	}
	return sum
}

// Program is what a job trains. It is divided into epochs, which are counted from 0; within an epoch the speed depends
// on the placement alone.
type Program interface {
	// Max is the most workers it can use; MaxOnNode the most on one node for which step times are known.
	Max() int
	MaxOnNode() int
	// Epochs is how many epochs it has, Until the progress at which the epoch is over. Progress counts from 0 and has
	// a unit of its own.
	Epochs() int
	Until(epoch int) float64
	// StepTime is how long a step takes, in seconds, above 0, of no more than Max workers.
	StepTime(p Placement) float64
	// Gain is the progress that a step of so many workers makes in an epoch, above 0.
	Gain(workers, epoch int) float64
	// Left is how many steps are left, as the program knows, at least 1.
	Left(epoch int, progress float64) float64
	// Total is how many steps it takes, as the program itself expects when it begins.
	Total() float64
}

// speed is the progress in a second.
func speed(p Program, at Placement, epoch int) float64 {
	return p.Gain(at.Workers(), epoch) / p.StepTime(at)
}

// Job is one job of a workload.
type Job struct {
	Name string
	// Submitted is when it comes, in seconds, from 0.
	Submitted int64
	// Workers is how many it asks for where sizes are fixed, from 1 to the program's Max.
	Workers int
	// Deadline is when it is to be complete, in seconds from 0; 0 for at any time.
	Deadline int64
	Program  Program
}

// Cluster is what there is: equal nodes.
type Cluster struct {
	Nodes, DevicesPerNode int
}

// Devices is how many devices there are.
func (c Cluster) Devices() int { return c.Nodes * c.DevicesPerNode }

// mostDevices bounds what is simulated.
const mostDevices = 1_000_000

// Check says what keeps it from being simulated.
func (c Cluster) Check() error {
	switch {
	case c.Nodes < 1 || c.DevicesPerNode < 1:
		return fmt.Errorf("%d nodes with %d devices are no cluster", c.Nodes, c.DevicesPerNode)
	case c.DevicesPerNode > mostDevices/c.Nodes:
		return fmt.Errorf("%d nodes with %d devices are more than can be simulated, %d devices", c.Nodes, c.DevicesPerNode, mostDevices)
	}
	return nil
}

// check says what keeps jobs from being run on a cluster.
func check(jobs []Job, c Cluster) error {
	if err := c.Check(); err != nil {
		return err
	}
	if len(jobs) == 0 {
		return fmt.Errorf("there are no jobs")
	}
	for _, j := range jobs {
		switch {
		case j.Deadline != 0 && j.Deadline <= j.Submitted:
			return fmt.Errorf("job %s is to be complete at %d s, it is submitted at %d s", j.Name, j.Deadline, j.Submitted)
		case j.Submitted < 0:
			return fmt.Errorf("job %s is submitted at %d s, before the beginning", j.Name, j.Submitted)
		case j.Workers < 1 || j.Workers > j.Program.Max():
			return fmt.Errorf("job %s asks for %d workers, it may have 1 to %d", j.Name, j.Workers, j.Program.Max())
		case j.Workers > c.Devices():
			return fmt.Errorf("job %s asks for %d workers, the cluster has %d devices: give it more nodes or devices, or leave the job out", j.Name, j.Workers, c.Devices())
		case c.DevicesPerNode > j.Program.MaxOnNode():
			return fmt.Errorf("job %s: step times are known for up to %d workers on a node, the cluster's nodes have %d devices", j.Name, j.Program.MaxOnNode(), c.DevicesPerNode)
		}
	}
	return nil
}

// filled is the placement of n workers on as few nodes as possible, the rest last.
func filled(n, perNode int) Placement {
	p := Placement(slices.Repeat([]int{perNode}, n/perNode))
	if n%perNode > 0 {
		p = append(p, n%perNode)
	}
	return p
}
