package console

import (
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
)

// Explanation is one job in sentences.
type Explanation struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	State     string `json:"state"`
	// Summary is what the job is doing.
	Summary []string `json:"summary"`
	// Chapters are in the order in which they should be read.
	Chapters []Chapter `json:"chapters"`
}

// Chapter is what there is to say about one question.
type Chapter struct {
	Title     string   `json:"title"`
	Sentences []string `json:"sentences"`
}

// Explain tells about the job of a name; false when there is none.
func (l *Look) Explain(name types.NamespacedName) (Explanation, bool) {
	j := l.find(name)
	if j == nil {
		return Explanation{}, false
	}
	why := "Why this size"
	if j.waits(l) {
		why = "Why it waits"
	}
	e := Explanation{Namespace: name.Namespace, Name: name.Name, State: j.state(), Summary: l.summary(j)}
	for _, chapter := range []Chapter{
		{why, l.size(j)},
		{"Speed", l.speed(j)},
		{"Lending", l.lending(j)},
		{"Bounds and policies", l.bounds(j)},
		{"Last changes", l.changes(j)},
		{"Restarts and goodput", l.past(j)},
	} {
		if len(chapter.Sentences) > 0 {
			e.Chapters = append(e.Chapters, chapter)
		}
	}
	return e, true
}

// Write writes the sentences, one a line.
func (e *Explanation) Write(out io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s/%s: %s\n", e.Namespace, e.Name, dash(e.State))
	for _, one := range e.Summary {
		fmt.Fprintf(&text, "  %s\n", one)
	}
	for _, chapter := range e.Chapters {
		fmt.Fprintf(&text, "\n%s\n", chapter.Title)
		for _, one := range chapter.Sentences {
			fmt.Fprintf(&text, "  %s\n", one)
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// summary is what the job is doing, and what its conditions say that is not as it should be.
func (l *Look) summary(j *job) []string {
	r, resting := j.rest(l)
	var all []string
	switch {
	case resting:
		all = append(all, sentence(r.text))
		if n := j.have(); n > 0 {
			all = append(all, fmt.Sprintf("It still has %s.", count(n, "worker")))
		}
		all = append(all, l.progress(j)...)
		if !r.waits {
			return append(all, troublesOf(j, bestKept)...)
		}
		return append(append(all, troubles(j)...), l.avoided(j)...) // why there is no attempt now, and what holds for the next one
	case j.in.Stage == allocation.Queued:
		all = append(all, fmt.Sprintf("It waits for room: its gang of %s starts together or not at all, and it has no pods meanwhile.",
			count(j.in.Min, "worker")))
	case j.in.Stage == allocation.Starting:
		all = append(all, fmt.Sprintf("It starts: %s of its gang of %d %s there, and it has no world yet.", count(j.have(), "pod"), j.in.Min, are(j.have())))
	default:
		all = append(all, fmt.Sprintf("It trains with %s, of at least %d and at most %d.", count(j.trains(), "worker"), j.in.Min, j.in.World(j.in.Max)))
		all = append(all, l.spares(j)...)
	}
	all = append(all, l.progress(j)...)
	all = append(append(all, troubles(j)...), stragglers(j)...)
	return append(all, l.avoided(j)...)
}

// trains is how many workers are in its world; of a job without spares those that are on their way into it are told of as well.
func (j *job) trains() int32 {
	if j.in.Spares <= 0 {
		return j.have()
	}
	n := int32(0)
	for i := range j.in.Workers {
		if w := &j.in.Workers[i]; w.World && !w.Ending {
			n++
		}
	}
	return n
}

// spares says how many workers are ready to take the place of others, and how many there should be, or why there will be none.
func (l *Look) spares(j *job) []string {
	if j.in.Spares <= 0 {
		return nil
	}
	ready, barred := value(j.object.Status.Workers.Spares), l.noSpares(j)
	said := fmt.Sprintf("%s %s ready to take the place of a worker that is lost", count(ready, "spare"), are(ready))
	switch {
	case ready == 0 && barred != "":
		said = "No spare is ready, and it gets none, because " + barred + ": with the next worker that is lost it has one less"
	case ready == 0:
		said = "No spare is ready: with the next worker that is lost it has one less, until another has come"
	case ready < j.in.Spares && barred != "":
		said += fmt.Sprintf(", of %d; it gets no more, because %s", j.in.Spares, barred)
	case ready < j.in.Spares:
		said += fmt.Sprintf(", of %d", j.in.Spares)
	}
	return []string{said + "."}
}

// noSpares is why a job gets no spares, which are what is beyond its min; empty where it does.
func (l *Look) noSpares(j *job) string {
	switch {
	case j.in.SizedBy != "":
		return j.in.SizedBy + " decides its size"
	case j.in.NoGrowth:
		return "spec.growth.policy is Off"
	case l.policy(j) == allocation.Never:
		return "spec.preemption.policy is Never"
	}
	return ""
}

// stragglers are the processes that keep the others waiting.
func stragglers(j *job) []string {
	var all []string
	for i := range j.object.Status.Stragglers {
		one := &j.object.Status.Stragglers[i]
		all = append(all, fmt.Sprintf("Rank %d, in %s on node %s, works %s times as long in a step as most ranks, since %s: every step waits for it.",
			value(one.Rank), one.Pod, one.Node, one.Factor, clock(value(one.Since).Time)))
	}
	return all
}

// avoided are the nodes on which nothing of the job is placed for a while.
func (l *Look) avoided(j *job) []string {
	var all []string
	for i := range j.object.Status.AvoidedNodes {
		node := &j.object.Status.AvoidedNodes[i]
		if until := value(node.Until).Time; until.After(l.now) {
			all = append(all, fmt.Sprintf("Not on node %s until %s: %s", node.Name, clock(until), sentence(node.Message)))
		}
	}
	return all
}

// progress is how far the training is.
func (l *Look) progress(j *job) []string {
	p := &j.object.Status.Progress
	if value(p.Step) == 0 {
		return nil
	}
	text := fmt.Sprintf("Step %d", value(p.Step))
	if total := value(p.TotalSteps); total > 0 {
		text = fmt.Sprintf("Step %d of %d (%d%%)", value(p.Step), total, 100*value(p.Step)/total)
	}
	if rate := value(p.SamplesPerSecond); rate > 0 && j.in.Stage == allocation.Training {
		text += fmt.Sprintf(", %d samples per second", rate)
	}
	return []string{text + "."}
}

// trouble is a condition that a person should know about while it has one of some reasons.
type trouble struct{ condition, reasons string }

// bestKept is also one of a job that has ended.
var bestKept = trouble{v1alpha1.ConditionBestKept, v1alpha1.EventBestMissed}

// troubles are conditions that a person should know about.
func troubles(j *job) []string {
	return troublesOf(j, []trouble{
		{v1alpha1.ConditionAdmitted, strings.Join([]string{v1alpha1.ReasonQuotaExceeded, v1alpha1.ReasonPodsForbidden, v1alpha1.ReasonPodGroupsMissing}, " ")},
		{v1alpha1.ConditionGangScheduled, v1alpha1.ReasonWaitingForRoom},
		{v1alpha1.ConditionTraining, strings.Join([]string{v1alpha1.ReasonWaitingForPods, v1alpha1.ReasonNotConnected, v1alpha1.ReasonResizing,
			v1alpha1.ReasonRecovering, v1alpha1.ReasonRegrouping, v1alpha1.ReasonBackOff, v1alpha1.ReasonStopping}, " ")},
		{v1alpha1.ConditionFullSize, strings.Join([]string{v1alpha1.ReasonGrowthBackOff, v1alpha1.ReasonWorkersLeftOut}, " ")},
		{v1alpha1.ConditionSnapshotsFit, v1alpha1.ReasonVolumeTooSmall},
		bestKept,
	}...)
}

// troublesOf says which of these conditions a job has.
func troublesOf(j *job, of ...trouble) []string {
	var all []string
	for _, one := range of {
		c := j.condition(one.condition)
		if c != nil && c.Message != "" && strings.Contains(" "+one.reasons+" ", " "+c.Reason+" ") {
			all = append(all, fmt.Sprintf("%s: %s", c.Reason, sentence(c.Message)))
		}
	}
	return all
}
