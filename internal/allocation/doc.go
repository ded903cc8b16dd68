// Package allocation says where there is room for workers.
//
// Room answers for one job: how many more pods of its shape the scheduler could place now, and on
// which nodes. It is pure, and looks at the cluster as the scheduler's filters do: what nodes offer
// less what pods on them request (pods that are ending still hold their share), selectors and
// affinity to nodes, taints, ports, affinity to other pods and spreading. It never looks at
// preemption: what it promises is free.
//
// It leaves out what only the scheduler knows: volumes that bind to nodes, devices behind resource
// claims (a shape that has such claims is promised nothing), and other plugins.
package allocation
