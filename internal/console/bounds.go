package console

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
)

// bounds say how large a job may be, what a worker takes, how it stands among others, and what may be taken
// from it.
func (l *Look) bounds(j *job) []string {
	if j.finished() {
		return nil
	}
	spec := &j.object.Spec
	most, counts := l.counts(j)
	text := fmt.Sprintf("It may have from %d to %d workers", j.in.Min, most)
	if j.in.Min == most {
		text = fmt.Sprintf("It has %s or none", count(j.in.Min, "worker"))
	}
	if len(counts) > 0 {
		var sizes []string
		for _, n := range counts {
			sizes = append(sizes, strconv.Itoa(int(n)))
		}
		text += ", of which these numbers are legal: " + list(sizes)
	}
	all := []string{text + "."}
	if barred := l.noSpares(j); j.in.Spares > 0 && barred != "" {
		all = append(all, fmt.Sprintf("It has no spares beside them (spec.workers.spares is %d), because %s.", j.in.Spares, barred))
	} else if n := j.in.Spares; n > 0 {
		all = append(all, fmt.Sprintf("They include %s (spec.workers.spares), in no world until another worker is lost: it trains with %d at most.",
			count(n, "spare"), j.in.World(j.in.Max)))
	}
	if takes := l.share(j.in.Gang); takes != "" {
		all = append(all, fmt.Sprintf("One worker takes %s.", takes))
	}
	if why := l.cluster.Shapes[j.in.Gang].Unmodelled; why != "" {
		all = append(all, sentence(why+": its gang is one attempt, all pods or none, and more workers are tried one at a time"))
	}
	all = append(all, l.standing(j)...)
	all = append(all, l.preemption(j))
	if most > j.in.Min && l.policy(j) != allocation.Never {
		all = append(all, growth(spec.Growth.Policy))
	}
	if spec.Strategy() == v1alpha1.ResizeRestart {
		all = append(all, "Programs are started anew in every new world (spec.resize.strategy Restart): a change costs what they have not saved.")
	}
	if j.in.Ends.After(l.now) {
		all = append(all, fmt.Sprintf("It ends in %s at the latest, at %s (spec.activeDeadline).", span(j.in.Ends.Sub(l.now)), clock(j.in.Ends)))
	}
	if !j.in.Deadline.IsZero() {
		all = append(all, l.deadline(j))
	}
	return all
}

// counts are the most workers that a job may have, and the legal numbers of them, nil where all are legal: spares are among them where it
// may have any.
func (l *Look) counts(j *job) (most int32, legal []int32) {
	if j.in.Spares <= 0 || l.noSpares(j) == "" {
		return j.in.Max, j.in.Sizes
	}
	return j.in.Max - j.in.Spares, slices.Compact(slices.Clone(j.in.Trains))
}

// most is the most workers that a job may have.
func (l *Look) most(j *job) int32 {
	most, _ := l.counts(j)
	return most
}

// deadline is what becomes of a job's deadline, as far as that can be told.
func (l *Look) deadline(j *job) string {
	in, d := j.in, j.decision
	text := fmt.Sprintf("It is to be complete in %s, at %s (spec.deadline)", span(in.Deadline.Sub(l.now)), clock(in.Deadline))
	switch {
	case !in.Deadline.After(l.now):
		return fmt.Sprintf("It was to be complete %s ago, at %s (spec.deadline).", span(l.now.Sub(in.Deadline)), clock(in.Deadline))
	case !l.cluster.Settings.ByValue:
		return text + ", which changes nothing: workers are shared evenly here."
	case d == nil || in.Stage != allocation.Training && in.Stage != allocation.Queued:
		return text + "."
	case in.Pace == nil || in.Pace.Left == 0:
		return text + "; whether it will be cannot be told yet: how fast it is, or how many steps are left, is not known."
	case d.Late && in.Stage == allocation.Queued:
		return text + "; it will be late whenever it starts, as far as is known."
	case d.Late:
		return text + "; it will be late with any number of workers of which it is known how fast it would be."
	case d.Needs == 0:
		return text + "."
	case d.Needs > j.have() && d.Could > 0:
		return text + fmt.Sprintf("; it needs %s for that. It could have %d at most: it takes none for that, and will be late.", count(int(d.Needs), "worker"), d.Could)
	case d.Needs > j.have():
		return text + fmt.Sprintf("; it needs %s for that.", count(int(d.Needs), "worker"))
	}
	return text + fmt.Sprintf("; %s would do.", count(int(d.Needs), "worker"))
}

// standing is the priority of a job, as far as it can be seen.
func (l *Look) standing(j *job) []string {
	spec := &j.object.Spec
	class := "it names no PriorityClass"
	if name := spec.Workers.Template.Spec.PriorityClassName; name != "" {
		class = "PriorityClass " + name
	}
	if l.most(j) > j.in.Min {
		class += fmt.Sprintf("; workers beyond min have PriorityClass %s, so that they leave first", spec.Growth.PriorityClassName)
	}
	if l.partial {
		return []string{sentence(class)}
	}
	all := []string{fmt.Sprintf("Its priority is %d: %s.", j.in.Priority, class)}
	if !j.in.Preempts {
		all = append(all, "Its PriorityClass takes nothing from others (preemptionPolicy Never).")
	}
	if j.in.Fault != "" && l.most(j) > j.in.Min {
		all = append(all, fmt.Sprintf("It does not grow: %s", sentence(j.in.Fault)))
	}
	return all
}

// policy is what may be taken from a job, within what its namespace allows; in a partial Look, which knows nothing
// of that, what the job asks for.
func (l *Look) policy(j *job) allocation.Policy {
	if j.in.SizedBy != "" {
		return allocation.Never
	}
	namespace := &l.cluster.Namespaces[j.in.Namespace]
	if !l.partial && (j.in.Policy == allocation.Never && !namespace.NeverAllowed || j.in.Policy == allocation.Evict && !namespace.EvictAllowed) {
		return allocation.Shrink
	}
	return j.in.Policy
}

// whenDurable says what may become of a job with Shrink that loses nothing.
const whenDurable = "its state is in the storage, so a job of higher priority may take all of it, when nothing less helps; it queues again then"

// mayEnd says whether all of a job with Shrink may be taken; in a partial Look, where its namespace allows it.
func (l *Look) mayEnd(j *job) bool {
	return l.policy(j) == allocation.Shrink && j.in.Durable && (l.partial || l.cluster.Namespaces[j.in.Namespace].EvictAllowed)
}

// preemption says what may be taken from a job.
func (l *Look) preemption(j *job) string {
	if j.in.SizedBy != "" {
		return j.in.SizedBy + " decides its size, whatever spec.preemption.policy and spec.growth.policy say: it has min workers, none of which are taken for others."
	}
	asked, policy := j.object.Spec.Preemption.Policy, l.policy(j)
	text := fmt.Sprintf("spec.preemption.policy is %s", asked)
	if policy != j.in.Policy {
		text += fmt.Sprintf(", which the administrator does not allow in namespace %s, so that Shrink is used", l.cluster.Namespaces[j.in.Namespace].Name)
	}
	switch {
	case policy == allocation.Never:
		text += ": it neither lends nor borrows, and has no workers beyond min"
	case policy == allocation.Evict:
		text += ": beside workers beyond min, a job of higher priority may take all of it, when nothing less helps; it queues again then"
	case l.mayEnd(j) && l.most(j) == j.in.Min:
		text += ": " + whenDurable
	case l.most(j) == j.in.Min:
		text += ": the operator takes no workers below min for others, and it has no more"
	default:
		// What a change of programs that are started anew costs is said with spec.resize.strategy.
		text += ": workers beyond min may be taken, for a gang of any priority and for growth that has more claim to them"
		if j.object.Spec.Strategy() == v1alpha1.ResizeInPlace {
			text += "; as planned that costs no step"
		}
		if l.mayEnd(j) {
			text += "; " + whenDurable
		} else {
			text += "; min stays"
		}
	}
	if l.partial && l.mayEnd(j) {
		text += ", unless the administrator does not allow Evict in this namespace"
	} else if l.partial && policy != allocation.Shrink {
		text += fmt.Sprintf(", unless the administrator does not allow %s in this namespace", asked)
	}
	return text + "."
}

func growth(policy v1alpha1.GrowthPolicy) string {
	if policy == v1alpha1.GrowthOff {
		return "spec.growth.policy is Off: no workers are added to those that are there."
	}
	return "spec.growth.policy is Auto: it grows into room that nobody needs more."
}
