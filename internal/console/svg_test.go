package console

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/replay"
)

// The picture is XML whatever jobs are called, and has each size of each job under each policy, with its reason.
func TestPictureOfAReplay(t *testing.T) {
	program := &replay.Scaling{Steps: 2000, Parallel: 1, Most: 2}
	jobs := []replay.Job{{Name: "a<b>&", Workers: 2, Program: program}, {Name: "c", Submitted: 100, Workers: 2, Program: program}}
	r, err := NewReplay(jobs, ReplayPolicies(), ReplayOptions{
		Cluster: replay.Cluster{Nodes: 1, DevicesPerNode: 2}, Ticks: replay.PublishedTicks, Join: 30 * time.Second, Pause: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := r.WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	read := xml.NewDecoder(strings.NewReader(b.String()))
	titles := 0
	for {
		token, err := read.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, b.String())
		}
		if start, ok := token.(xml.StartElement); ok && start.Name.Local == "title" {
			titles++
		}
	}
	sizes := 0
	for i := range r.Runs {
		for _, j := range r.Runs[i].Jobs {
			sizes += len(j.Sizes)
			if last := j.Sizes[len(j.Sizes)-1]; last.Workers != 0 || last.At != j.Completed {
				t.Errorf("%s ends with %+v", j.Name, last)
			}
			for _, size := range j.Sizes {
				if size.Why == "" {
					t.Errorf("%s, %s: no reason for %+v", r.Runs[i].Policy, j.Name, size)
				}
			}
		}
	}
	if titles < sizes {
		t.Errorf("%d parts, the jobs had %d sizes", titles, sizes)
	}
	for _, want := range []string{"a&lt;b&gt;&amp;: 2 workers from", "it has had less than 16 device-hours", "it waits to start", "gives 1 worker to replay/c"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
}
