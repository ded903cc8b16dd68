package console

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
)

// Who may not see the whole cluster is told what the job itself says, and nothing that was guessed.
func TestExplainWithoutAPlanSaysWhatTheJobSays(t *testing.T) {
	c := lender()
	c.Jobs[1].Status.Queue.WaitsFor = "waits for 3 places of 1 example.com/gpu: 1 is free"
	c.Jobs[1].Status.Queue.Position = ptr.To[int32](2)
	l := NewPartialLook(fleet.Objects{Jobs: c.Jobs, Pods: c.Pods}, options(t))
	text := explained(t, l, "big")
	for _, want := range []string{"The operator says: Waits for 3 places", "It is 2nd in the queue", "1 place by team/lender", "PriorityClass high"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
	for _, guess := range []string{"does not exist", "It would start", "Its priority is"} {
		if strings.Contains(text, guess) {
			t.Errorf("%q cannot be known:\n%s", guess, text)
		}
	}
	if text = explained(t, l, "lender"); !strings.Contains(text, "Right now worker lender-1-4 leaves for job team/big") {
		t.Error(text)
	}
}

func TestExplainTellsTroubles(t *testing.T) {
	c := clusterOf(4)
	job := c.add("job", 2, 4)
	c.trains(job, "n0", "n0")
	job.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionTraining, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonRegrouping, Message: "one of two workers is left"},
		{Type: v1alpha1.ConditionAdmitted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAdmitted, Message: "nothing stands in the way of the job's pods"},
	}
	text := explained(t, c.look(t), "job")
	if !strings.Contains(text, "Regrouping: One of two workers is left.") || strings.Contains(text, "stands in the way") {
		t.Error(text)
	}
}

// A job that nobody has looked at yet has no status at all.
func TestExplainNewJob(t *testing.T) {
	c := clusterOf(4)
	c.add("new", 2, 4)
	if text := explained(t, c.look(t), "new"); !strings.Contains(text, "Its gang starts now, on n0 x2.") {
		t.Error(text)
	}
}

func TestExplainDecodesFromJSON(t *testing.T) {
	told, _ := lender().look(t).Explain(types.NamespacedName{Namespace: "team", Name: "lender"})
	text, err := json.Marshal(told)
	if err != nil {
		t.Fatal(err)
	}
	var back Explanation
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(told, back); diff != "" {
		t.Error(diff)
	}
}

func TestNotFoundNamesWhatWasMeant(t *testing.T) {
	c := clusterOf(4)
	c.add("digits", 1, 1)
	c.add("digits-large", 1, 1)
	c.add("words", 1, 1)
	c.add("pictures", 1, 1, in("research"))
	l := c.look(t)
	for _, test := range []struct{ namespace, name, want string }{
		{"team", "digit", "did you mean digits or digits-large?"},
		{"team", "dgits", "did you mean digits?"},
		{"team", "pictures", "there is one of that name in research: give --namespace"},
		{"team", "zzz", "it has digits, digits-large, words"},
		{"empty", "zzz", "that namespace has no jobs"},
	} {
		err := l.NotFound(types.NamespacedName{Namespace: test.namespace, Name: test.name})
		if !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s/%s: %q does not say %q", test.namespace, test.name, err, test.want)
		}
	}
}
