package allocation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// waits is what the plan knows of a gang that waits, until it becomes words.
type waits struct {
	verdict verdict
	demand  demand
	// free is how many of its places are free now, comes how many pods others have that end and hold some.
	free, comes int32
	// behind is the job for which room is kept that would do, None when there is none.
	behind JobID
	// attempt is true when another gang is tried first for which the cluster is to grow.
	attempt bool
}

// giver is a job whose workers leave for another.
type giver struct {
	job   JobID
	count int
}

// collect says who gives to whom.
func (p *planner) collect() {
	p.givers, p.scarcity = map[JobID][]giver{}, map[classID][]string{}
	for id := range p.jobs {
		j := &p.jobs[id]
		if j.evicted && p.out[id].For != None {
			p.givers[p.out[id].For] = append(p.givers[p.out[id].For], giver{job: JobID(id), count: int(j.live)})
			continue
		}
		if !j.lends && j.gone == 0 && !j.paused && j.moves == 0 {
			continue
		}
		for w := range p.c.Jobs[id].Workers {
			l := p.leaving[j.first+w]
			if !l.chosen && !l.held && !l.moves || l.job == None {
				continue
			}
			all := p.givers[l.job]
			if len(all) > 0 && all[len(all)-1].job == JobID(id) {
				all[len(all)-1].count++
			} else {
				p.givers[l.job] = append(all, giver{job: JobID(id), count: 1})
			}
		}
	}
}

// explain says why a job has the size that it has.
func (p *planner) explain(id JobID) {
	in, j, out := &p.c.Jobs[id], &p.jobs[id], &p.out[id]
	switch {
	case in.Name == "" || in.Stage == Held:
		return
	case j.later:
		out.Why = Why{RuleWholeJobs, "Lending", "all of it makes room for " + p.c.Jobs[out.For].Name + ", which has a higher priority, once others have kept what they grew by for long enough"}
	case out.Evict:
		out.Why = Why{RuleWholeJobs, "Preempted", "all of it makes room for " + p.c.Jobs[out.For].Name + ", which has a higher priority and would not start otherwise"}
	case in.Stage == Queued:
		p.explainQueued(id)
	case j.moves > 0:
		out.Why = Why{RuleConsolidation, "Moving", "workers of it move to other nodes, so that another gang has whole ones"}
	case j.lends:
		out.Why = Why{RuleGangsFirst, "Lending", p.lending(id)}
	case in.Armed && j.marked && j.gone > 0:
		out.Why = Why{RuleNoHostage, "Lending", p.armed(id)}
	case j.added > 0 && j.own < in.Min:
		out.Why = Why{RuleGangClass, "Replacing", "workers of its gang were lost and are replaced"}
	case in.Stage == Training:
		out.Why = p.whyNotTried(id, p.whyNotMore(id))
	case in.Stage == Fixed:
		out.Why = Why{RuleKeepsRunning, "Fixed", "its world cannot change: it keeps its workers"}
	default:
		out.Why = Why{RuleGangsFirst, "Starting", "its gang starts"}
	}
	if in.Stage == Training {
		out.NoSpares = p.getsNoSpares(id)
		p.addLateness(id)
	}
}

// addLateness has a job that trains say that it will miss its deadline, whatever else it says of its size.
func (p *planner) addLateness(id JobID) {
	out := &p.out[id]
	words := p.lateness(id)
	switch out.Why.Reason {
	case "Late":
		out.Misses = true
	case "Growing", "Lending", "Moving", "Replacing":
		if out.Misses = words != "" && (out.Why.Reason != "Growing" || !p.onItsWay(id)); out.Misses {
			out.Why.Text += "; " + words
		}
	}
}

// explainQueued says why a gang starts or does not.
func (p *planner) explainQueued(id JobID) {
	in, out := &p.c.Jobs[id], &p.out[id]
	switch {
	case out.Start:
		out.Why = p.starting(id)
	case p.c.Namespaces[in.Namespace].Ending:
		out.Why = namespaceEnding
	case p.jobs[id].waits.demand.places > 0:
		if p.explainWaiting(id); out.Late {
			out.Why.Text += "; it will miss its deadline, as far as is known, whenever it starts"
		}
	}
}

// namespaceEnding is why a job neither starts nor grows.
var namespaceEnding = Why{RuleKeepsRunning, "NamespaceEnding", "its namespace is being deleted"}

// starting says that a gang is made.
func (p *planner) starting(id JobID) Why {
	if out := &p.out[id]; len(out.Places) > 0 && out.Places[0] == None {
		if why := p.opaqueWords(p.c.Jobs[id].Gang); why != "" {
			return Why{RuleGangsFirst, "Attempted", "an attempt is made, of all pods of its gang at once" + why}
		}
		return Why{RuleGangsFirst, "Attempted", "an attempt is made: only the scheduler knows where its pods fit"}
	}
	return Why{RuleGangsFirst, "Admitted", "there is room for all " + strconv.Itoa(int(p.c.Jobs[id].Min)) + " workers of its gang"}
}

// takers are those whom workers of a job leave for, with how many; None for those who leave for nobody.
func (p *planner) takers(id JobID) []giver {
	j := &p.jobs[id]
	var takers []giver
	for w := range p.c.Jobs[id].Workers {
		l := p.leaving[j.first+w]
		if !l.chosen && !l.held {
			continue
		}
		at := slices.IndexFunc(takers, func(g giver) bool { return g.job == l.job })
		if at < 0 {
			at = len(takers)
			takers = append(takers, giver{job: l.job})
		}
		takers[at].count++
	}
	return takers
}

// armed says whom workers leave for in a change that is under way.
func (p *planner) armed(id JobID) string {
	var parts []string
	for _, g := range p.takers(id) {
		whom := "nobody any more"
		if g.job != None {
			whom = p.c.Jobs[g.job].Name
		}
		parts = append(parts, count(g.count, "worker")+" to "+whom)
	}
	return "gives " + strings.Join(parts, ", ") + ", in a change that is under way: that is finished, or cut short if it takes too long"
}

// lending names those to whom workers go.
func (p *planner) lending(id JobID) string {
	j := &p.jobs[id]
	var parts []string
	for _, g := range p.takers(id) {
		if g.job != None {
			parts = append(parts, count(g.count, "worker")+" to "+p.c.Jobs[g.job].Name)
		}
	}
	verb := "gives "
	if !j.young.IsZero() && j.gone == 0 {
		verb = "gives, once it has kept what it grew by for long enough, "
	}
	return verb + strings.Join(parts, ", ") + ", which had been lent to it"
}

// whyNotMore says why a training job does not grow, in words that cost nothing where there is nothing to say.
func (p *planner) whyNotMore(id JobID) Why {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	size := p.size(id) - j.virtual
	switch {
	case j.added > 0:
		return Why{RuleGrowth, "Growing", "room for more workers is free" + p.againWords(id)}
	case in.Fault != "":
		return Why{RuleGangClass, "GrowthRefused", in.Fault}
	case in.Finishing:
		return Why{RuleKeepsRunning, "Finishing", "it is about to end"}
	case p.c.Namespaces[in.Namespace].Ending:
		return namespaceEnding
	case p.lateness(id) != "":
		return p.whyLate(id)
	case p.hasAll(id, size):
		return Why{RuleGrowth, "AtMax", "it has all the workers that it may have"}
	case in.SizedBy != "":
		return Why{RuleLendsAndBorrows, "SizedElsewhere", in.SizedBy + " decides its size: it has the workers of its gang, lends none and borrows none"}
	case in.NoGrowth:
		return Why{RuleLendsAndBorrows, "GrowthOff", "its growth is switched off"}
	case j.policy == Never:
		return Why{RuleLendsAndBorrows, "DoesNotBorrow", "it lends nothing (preemption policy Never), so it borrows nothing"}
	case in.GrowAfter.After(p.c.Now):
		return Why{RuleGrowth, "GrowthBackingOff", "growth failed and is tried again later"}
	case j.virtual > 0:
		return Why{RuleGrowth, "WaitingForRoom", "others leave room to it: it grows when that is free"}
	case !until(in.ReclaimedAt, p.c.Settings.RegrowDelay(in.Reclaims), p.c.Now).IsZero():
		return Why{RuleGrowth, "RegrowDelayed", "room was taken back from it lately: it does not grow into it again yet"}
	case p.freeIsAvoided(id):
		return Why{RuleGrowth, "GrowthBackingOff", "there is room on nodes where its workers have failed or were lost: it does not grow there for a while"}
	case j.hasClass && p.now.holds(j.growthClass, nil, 1) && p.now.bounds(in.Growth, p.c.Namespaces[in.Namespace].HeadRoom) < in.next(size)-size:
		return Why{RuleQuota, "QuotaUsedUp", "the namespace's quota has no room for more workers"}
	case len(in.Sizes) > 0 && j.hasClass && p.now.holds(j.growthClass, nil, 1):
		return Why{RuleGrowth, "NoRoomForNextSize", fmt.Sprintf("its next size is %d: %s more would be needed, and there is room for %d", in.next(size), count(int(in.next(size)-size), "worker"), p.now.of(j.growthClass).total)}
	}
	return Why{RuleGrowth, "NoRoom", "there is no room for more workers"}
}

// hasAll says whether a job has all the workers that it may have. One that does not grow gets no spares, so that those who train are all.
func (p *planner) hasAll(id JobID, size int32) bool {
	in := &p.c.Jobs[id]
	return in.next(size) == 0 || p.getsNoSpares(id) && in.World(size) >= in.World(in.most(in.Max))
}

// getsNoSpares says whether a job is to have spares and gets none, since it has no more workers than its gang.
func (p *planner) getsNoSpares(id JobID) bool {
	in := &p.c.Jobs[id]
	return in.Spares > 0 && (in.SizedBy != "" || in.NoGrowth || p.jobs[id].policy == Never)
}

// whyLate says that a job will miss its deadline, or that it is on its way to what it needs.
func (p *planner) whyLate(id JobID) Why {
	if p.onItsWay(id) {
		return Why{RuleGrowth, "Growing", "it is measured with the workers that it has, and is given more then"}
	}
	return Why{RuleGrowth, "Late", p.lateness(id)}
}

// whyNotTried is why a job does not grow that does not for a reason, where only the scheduler knows if its workers fit.
func (p *planner) whyNotTried(id JobID, why Why) Why {
	j, tried := &p.jobs[id], p.opaqueWords(p.c.Jobs[id].Growth)
	noRoom := why.Reason == "NoRoom" || why.Reason == "NoRoomForNextSize"
	switch {
	case tried == "":
		return why
	case j.added > 0:
		why.Text = "there may be room for one more worker"
	case noRoom && j.unbound > 0:
		why.Reason, why.Text = "Growing", "the worker that was added last has no node yet"
	case !noRoom && why.Reason != "GrowthBackingOff":
		return why
	}
	why.Text += tried + ": more workers are tried one at a time"
	return why
}

// opaqueWords says why only the scheduler knows where pods fit, to follow on something else; empty where the planner knows.
func (p *planner) opaqueWords(s ShapeID) string {
	if why := p.c.Shapes[s].Unmodelled; why != "" {
		return "; " + why
	}
	return ""
}

// freeIsAvoided says whether there is room for growth of a job, on nodes that it avoids.
func (p *planner) freeIsAvoided(id JobID) bool {
	if !p.jobs[id].hasClass {
		return false
	}
	return p.now.anyAt(p.jobs[id].growthClass, p.c.Jobs[id].Avoid)
}

// explainWaiting says what a queued gang waits for.
func (p *planner) explainWaiting(id JobID) {
	in, w, out := &p.c.Jobs[id], &p.jobs[id].waits, &p.out[id]
	empty := p.classes.empty(w.demand.class)
	switch {
	case w.attempt && w.verdict == blocked:
		out.Why = Why{RuleReservation, "WaitingForAttempt", "does not fit, and waits until another gang has been tried for which the cluster is to get more nodes"}
	case empty < int64(in.Min):
		out.Why = p.tooLarge(id, empty)
	case w.verdict == blocked && p.reach.bounds(in.Gang, 0) < in.Min && p.quotaWords(id) != "":
		out.Why = Why{RuleQuota, "QuotaUsedUp", p.quotaWords(id)}
	case w.verdict == waiting && len(p.givers[id]) == 0 && w.comes == 0:
		out.Why = Why{RuleReservation, "WaitingForAttempt", "waits until another gang has been tried that only the scheduler can place" + p.opaqueWords(in.Gang)}
	default:
		out.Why = p.waitsFor(id)
	}
}

// waitsFor tells the places that a gang needs, those that are free, and those that come.
func (p *planner) waitsFor(id JobID) Why {
	in, w := &p.c.Jobs[id], &p.jobs[id].waits
	var b strings.Builder
	takes, lacks := p.sizeWords(in.Gang), ""
	if short := p.scarce(id); len(short) > 0 && w.free < in.Min {
		takes, lacks = p.allWords(in.Gang), ", for lack of "+strings.Join(short, " and ")
	}
	fmt.Fprintf(&b, "waits for %s of %s: %s free%s", count(int(in.Min), "place"), takes, isAre(int(w.free)), lacks)
	given := 0
	for _, g := range p.givers[id] {
		given += g.count
		young := &p.jobs[g.job]
		switch {
		case young.moves > 0:
			fmt.Fprintf(&b, ", %s of %s moves elsewhere for it first", count(g.count, "worker"), p.c.Jobs[g.job].Name)
		case young.later:
			fmt.Fprintf(&b, ", %s is to end for it with all of its %s, once others may be shrunk as well", p.c.Jobs[g.job].Name, count(g.count, "worker"))
		case young.evicted:
			fmt.Fprintf(&b, ", %s ends for it with all of its %s", p.c.Jobs[g.job].Name, count(g.count, "worker"))
		case !young.young.IsZero() && young.gone == 0:
			fmt.Fprintf(&b, ", %d can be taken back from %s once it has had them for long enough", g.count, p.c.Jobs[g.job].Name)
		default:
			fmt.Fprintf(&b, ", %d can be taken back from %s (being reclaimed)", g.count, p.c.Jobs[g.job].Name)
		}
	}
	if int(w.comes) > given && w.verdict == waiting {
		fmt.Fprintf(&b, ", and pods are ending")
	}
	switch {
	case w.behind != None:
		b.WriteString(", and room is kept for " + p.c.Jobs[w.behind].Name)
		return Why{RuleReservation, "BehindReservation", b.String()}
	case w.verdict == waiting && given > 0:
		return Why{RuleGangsFirst, "Reclaiming", b.String()}
	case w.verdict == waiting:
		return Why{RuleLeavingRoom, "RoomIsEnding", b.String()}
	case in.Unasked:
		b.WriteString("; nobody leaves for it before the API server was asked about its pods")
	case !in.Preempts:
		b.WriteString("; its priority class takes nothing from others")
	default:
		b.WriteString(", and what others have cannot be taken")
	}
	return Why{RuleReservation, "NoRoom", b.String()}
}

// tooLarge says by how much a gang is larger than the cluster, and what would fit.
func (p *planner) tooLarge(id JobID, empty int64) Why {
	in := &p.c.Jobs[id]
	if empty > 0 {
		return Why{RuleReservation, "LargerThanCluster", fmt.Sprintf("the job is larger than the cluster: %s wanted and %d would fit an empty cluster", areWorkers(int(in.Min)), empty)}
	}
	shape, nodes := &p.c.Shapes[in.Gang], false
	for i := range p.c.Nodes {
		nodes = nodes || p.c.Nodes[i].Name != "" && p.c.Nodes[i].Closed == "" && shape.Nodes.Has(i)
	}
	if !nodes {
		return Why{RuleReservation, "NoNode", "no node that is open matches its selectors, affinity and tolerations"}
	}
	for r, amount := range shape.Request {
		most := int64(0)
		for i := range p.c.Nodes {
			if n := &p.c.Nodes[i]; n.Name != "" && n.Closed == "" && shape.Nodes.Has(i) && r < len(n.Capacity) {
				most = max(most, n.Capacity[r])
			}
		}
		if amount > 0 && most == 0 {
			return Why{RuleReservation, "NoNode", "no node that it may use offers " + p.c.Resources[r]}
		}
		if most < amount {
			return Why{RuleReservation, "NoNode", fmt.Sprintf("no node is large enough for one of its workers: %s %s are wanted and the largest has %s",
				quantity(p.c.Resources[r], amount), p.c.Resources[r], quantity(p.c.Resources[r], most))}
		}
	}
	return Why{RuleReservation, "NoNode", "no node has all that one of its workers takes: " + p.allWords(in.Gang)}
}

// quotaWords says which quota does not admit a gang; empty when all do.
func (p *planner) quotaWords(id JobID) string {
	in := &p.c.Jobs[id]
	shape := &p.c.Shapes[in.Gang]
	for _, q := range shape.Quotas {
		quota := &p.c.Quotas[q]
		for i, amount := range shape.Demand {
			if amount <= 0 || i >= len(quota.Hard) || quota.Hard[i] >= Unbounded/2 {
				continue
			}
			if fits := quota.Hard[i] / amount; fits < int64(in.Min) {
				return fmt.Sprintf("quota %s allows %d of its %s (%s)", quota.Name, fits, count(int(in.Min), "worker"), p.c.Counts[i])
			}
			if left := max(p.reach.quota[int(q)*len(p.c.Counts)+i], 0) / amount; left < int64(in.Min) {
				return fmt.Sprintf("quota %s is used up: it admits %d more of its %s (%s)", quota.Name, left, count(int(in.Min), "worker"), p.c.Counts[i])
			}
		}
	}
	return ""
}

// sizeWords says what one worker takes: its devices, else its CPUs.
func (p *planner) sizeWords(s ShapeID) string {
	var parts []string
	for i, amount := range p.c.Shapes[s].Request {
		if amount > 0 && p.c.device(i) {
			parts = append(parts, strconv.FormatInt(amount, 10)+" "+p.c.Resources[i])
		}
	}
	if len(parts) > 0 {
		return strings.Join(parts, " and ")
	}
	for i, amount := range p.c.Shapes[s].Request {
		if amount > 0 && p.c.Resources[i] == "cpu" {
			return quantity("cpu", amount) + " cpu"
		}
	}
	return "its size"
}

// allWords says all that one worker takes, devices first. That it is one pod goes without saying.
func (p *planner) allWords(s ShapeID) string {
	var parts []string
	for _, devices := range []bool{true, false} {
		for i, amount := range p.c.Shapes[s].Request {
			if amount > 0 && p.c.device(i) == devices && p.c.Resources[i] != "pods" {
				parts = append(parts, quantity(p.c.Resources[i], amount)+" "+p.c.Resources[i])
			}
		}
	}
	if len(parts) < 2 {
		return strings.Join(parts, "")
	}
	return strings.Join(parts[:len(parts)-1], ", ") + " and " + parts[len(parts)-1]
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

func isAre(n int) string {
	if n == 1 {
		return "1 is"
	}
	return strconv.Itoa(n) + " are"
}

func areWorkers(n int) string {
	if n == 1 {
		return "1 worker is"
	}
	return strconv.Itoa(n) + " workers are"
}
