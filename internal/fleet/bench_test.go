package fleet

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/speed"
)

// large is a cluster of 5,000 nodes with 10 pods each, and 200 jobs, of which half have 16 workers. No two jobs ask for the same.
func large() (*Cluster, []*corev1.Pod) {
	var objects Objects
	for i := range 5000 {
		objects.Nodes = append(objects.Nodes, nodeOf(fmt.Sprintf("n%d", i), offers(corev1.ResourcePods, "110"), offers("example.com/gpu", "8")))
		for j := range 10 {
			name := fmt.Sprintf("p%d-%d", i, j)
			objects.Pods = append(objects.Pods, podOf(name, "500m", on(fmt.Sprintf("n%d", i)), func(p *corev1.Pod) {
				p.UID, p.Namespace = types.UID(name), fmt.Sprintf("team-%d", i%50)
			}))
		}
	}
	others := objects.Pods
	for i := range 200 {
		job := jobOf(fmt.Sprintf("job-%d", i), templateOf(asks("example.com/gpu", fmt.Sprint(1+i%4)), asks("cpu", fmt.Sprintf("%dm", 1000+i))))
		if i%2 == 0 {
			trains(job)
			for w := range 16 {
				objects.Pods = append(objects.Pods, workerOf(job, w, on(fmt.Sprintf("n%d", i*20+w))))
			}
		}
		objects.Jobs = append(objects.Jobs, job)
	}
	for i := range 50 {
		objects.Quotas = append(objects.Quotas, quotaOf("q", "1000", func(q *corev1.ResourceQuota) { q.Namespace = fmt.Sprintf("team-%d", i) }))
	}
	return FromObjects(objects, optionsOf()), others
}

func BenchmarkPodEvent(b *testing.B) {
	c, pods := large()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		pod := pods[i%len(pods)]
		c.DeletePod(pod)
		c.SetPod(pod)
	}
}

func BenchmarkWorkerEvent(b *testing.B) {
	c, _ := large()
	worker := workerOf(jobOf("job-0", templateOf(asks("example.com/gpu", "1"))), 3, on("n3"))
	b.ReportAllocs()
	for b.Loop() {
		c.DeletePod(worker)
		c.SetPod(worker)
	}
}

func BenchmarkNodeEvent(b *testing.B) {
	c, _ := large()
	nodes := []*corev1.Node{nodeOf("n7"), nodeOf("n7", inZone("b"))}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.SetNode(nodes[i%2])
	}
}

func BenchmarkSnapshot(b *testing.B) {
	for name, waiting := range map[string]int{"nobody waits": 0, "1000 wait": 1000} {
		b.Run(name, func(b *testing.B) {
			c, _ := large()
			for i := range waiting {
				c.SetPod(podOf(fmt.Sprintf("w%d", i), "7", priority(0)))
			}
			b.ReportAllocs()
			for b.Loop() {
				c.Snapshot()
			}
		})
	}
}

// BenchmarkSnapshotOfTheRefused is a snapshot where many pods wait whom the scheduler refuses on all nodes: as fast as if they had a place.
func BenchmarkSnapshotOfTheRefused(b *testing.B) {
	c, _ := large()
	c.options.Now = func() time.Time { return start.Add(time.Minute) } // it has seen the nodes
	for i := range 3000 {
		c.SetPod(podOf(fmt.Sprintf("w%d", i), "1", priority(0), refused("0/5000 nodes are available: 5000 node(s) were unschedulable.")))
	}
	b.ReportAllocs()
	for b.Loop() {
		c.Snapshot()
	}
}

// BenchmarkReport is what a reconcile pays, of a job that was seen at so many sizes.
func BenchmarkReport(b *testing.B) {
	for _, sizes := range []int32{0, 4, 16} {
		b.Run(fmt.Sprintf("sizes=%d", sizes), func(b *testing.B) {
			c, _ := large()
			var versions []*v1alpha1.TrainingJob
			for i := range 2 {
				job := jobOf("job-0", trains, version(100+i), templateOf(asks("example.com/gpu", "1")))
				for n := range sizes {
					job.Status.Speed.Sizes = append(job.Status.Speed.Sizes, sizeAt(n+1, fmt.Sprintf("%d.23456", n+1), 1000, start))
				}
				versions = append(versions, job)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				versions[i%2].ResourceVersion = fmt.Sprint(100 + i)
				c.Report(versions[i%2], Facts{Elastic: true})
			}
		})
	}
}

// BenchmarkFit is what a look at a job pays once a minute.
func BenchmarkFit(b *testing.B) {
	status := &v1alpha1.SpeedStatus{}
	for n := range int32(16) {
		status.Sizes = append(status.Sizes, sizeAt(n+1, fmt.Sprintf("%d.23456", n+1), 1000, start))
	}
	for b.Loop() {
		new(speed.Fitter).Look(start, speed.Observations(SizesSeen(status), start), 1)
	}
}
