package console

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
)

// topOf sees jobs and pods only, as the command does.
func topOf(t *testing.T, c *cluster, order string) Top {
	t.Helper()
	top, err := NewPartialLook(fleet.Objects{Jobs: c.Jobs, Pods: c.Pods}, options(t)).Top(order)
	if err != nil {
		t.Fatal(err)
	}
	return top
}

func busy() *cluster {
	c := clusterOf(8)
	c.trains(c.add("small", 1, 2), "n0")
	large := c.add("large", 2, 4)
	c.trains(large, "n0", "n0", "n0")
	for _, pause := range []time.Duration{300 * time.Millisecond, 180 * time.Millisecond, 9 * time.Second} {
		large.Status.Resizes = append(large.Status.Resizes, v1alpha1.Resize{Pause: &metav1.Duration{Duration: pause}})
	}
	c.add("ended", 2, 2, condition(v1alpha1.ConditionComplete, "Complete", ""), in("research"), func(job *v1alpha1.TrainingJob) {
		job.Status.Progress = large.Status.Progress
	})
	return c
}

func TestTop(t *testing.T) {
	var text strings.Builder
	top := topOf(t, busy(), "devices")
	if err := top.Write(&text, true); err != nil {
		t.Fatal(err)
	}
	golden(t, "top", text.String())
}

func TestTopSorts(t *testing.T) {
	for order, want := range map[string]string{
		"devices": "large small ended", "name": "ended large small", "pause": "large ended small", "samples": "large small ended", "state": "ended large small",
	} {
		var names []string
		for _, one := range topOf(t, busy(), order).Jobs {
			names = append(names, one.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("by %s: %s, want %s", order, got, want)
		}
	}
	if _, err := busy().look(t).Top("beauty"); err == nil || !strings.Contains(err.Error(), "devices, goodput") {
		t.Errorf("an order that is not known: %v", err)
	}
}

func TestTopDecodesFromJSON(t *testing.T) {
	top := topOf(t, busy(), "devices")
	text, err := json.Marshal(top)
	if err != nil {
		t.Fatal(err)
	}
	var back Top
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(top.Totals, back.Totals); diff != "" {
		t.Error(diff)
	}
	if got := back.Totals.Devices[string(gpu)]; got != 4 {
		t.Errorf("%d devices are held, want 4", got)
	}
}

func TestTopOfNothing(t *testing.T) {
	var text strings.Builder
	top := topOf(t, clusterOf(1), "name")
	if err := top.Write(&text, false); err != nil {
		t.Fatal(err)
	}
	if text.String() != "no jobs\n" {
		t.Errorf("%q", text.String())
	}
}
