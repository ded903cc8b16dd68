package allocation

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// domain is a set of nodes with one value of a label.
type domain struct{ key, value string }

func domainOf(node *corev1.Node, key string) (domain, bool) {
	value, there := node.Labels[key]
	return domain{key, value}, there
}

// topology is what other pods, and copies of the shape, say about where a copy may go.
type topology struct {
	// closed are domains that an anti-affinity keeps the shape out of, and own the keys of which a
	// copy closes its domain to the next.
	closed map[string]map[string]bool
	own    []string
	// near are the keys by which a copy must stand in a domain of friends. A first one, where there
	// are none yet, may stand anywhere if it is a friend of itself.
	near    []string
	friends map[domain]bool
	first   bool
	spreads []*spread
}

// spread is a constraint on how evenly pods stand over domains.
type spread struct {
	constraint corev1.TopologySpreadConstraint
	counts     map[domain]int
	// least is the smallest of them, or 0 while there are too few domains.
	least int
	// self is 1 when a copy counts itself.
	self int
}

// newTopology returns nil when nothing but the nodes themselves decides where a copy may go.
func newTopology(shape *corev1.Pod, nodes []*corev1.Node, pods map[string][]*corev1.Pod) *topology {
	t := &topology{closed: map[string]map[string]bool{}, friends: map[domain]bool{}}
	apart, near := antiAffinity(shape), affinity(shape)
	for i := range apart {
		if matches(&apart[i], shape, shape) {
			t.own = append(t.own, apart[i].TopologyKey)
		}
	}
	for i := range near {
		t.near = append(t.near, near[i].TopologyKey)
	}
	for _, node := range nodes {
		for _, pod := range pods[node.Name] {
			t.meet(node, pod, shape, apart, near)
		}
	}
	t.first = len(near) > 0 && len(t.friends) == 0 && befriends(near, shape, shape)
	for i := range shape.Spec.TopologySpreadConstraints {
		if constraint := shape.Spec.TopologySpreadConstraints[i]; constraint.WhenUnsatisfiable == corev1.DoNotSchedule {
			t.spreads = append(t.spreads, newSpread(constraint, shape, nodes, pods))
		}
	}
	if len(t.closed)+len(t.own)+len(t.near)+len(t.spreads) == 0 {
		return nil
	}
	return t
}

// meet takes in what a pod on a node means for copies of the shape.
func (t *topology) meet(node *corev1.Node, pod, shape *corev1.Pod, apart, near []corev1.PodAffinityTerm) {
	for i := range apart {
		if matches(&apart[i], shape, pod) {
			t.close(node, apart[i].TopologyKey)
		}
	}
	theirs := antiAffinity(pod)
	for i := range theirs {
		if matches(&theirs[i], pod, shape) {
			t.close(node, theirs[i].TopologyKey)
		}
	}
	if len(near) > 0 && befriends(near, shape, pod) {
		t.befriend(node)
	}
}

// close keeps further copies out of a node's domain. A node without the label is in none.
func (t *topology) close(node *corev1.Node, key string) {
	value, there := node.Labels[key]
	if !there {
		return
	}
	if t.closed[key] == nil {
		t.closed[key] = map[string]bool{}
	}
	t.closed[key][value] = true
}

func (t *topology) befriend(node *corev1.Node) {
	for _, key := range t.near {
		if d, there := domainOf(node, key); there {
			t.friends[d] = true
		}
	}
}

// allows says whether a copy may go to a node as things stand.
func (t *topology) allows(node *corev1.Node) bool {
	if t.closes(node) {
		return false
	}
	for _, key := range t.near {
		if d, there := domainOf(node, key); !there || !t.first && !t.friends[d] {
			return false
		}
	}
	return !slices.ContainsFunc(t.spreads, func(s *spread) bool { return !s.allows(node) })
}

// closes says whether an anti-affinity keeps the shape out of a node, which no further pod changes.
func (t *topology) closes(node *corev1.Node) bool {
	if t == nil {
		return false
	}
	for key, values := range t.closed {
		if value, there := node.Labels[key]; there && values[value] {
			return true
		}
	}
	return false
}

// add takes in that a copy was placed.
func (t *topology) add(node *corev1.Node) {
	for _, key := range t.own {
		t.close(node, key)
	}
	if t.first {
		t.first = false
		t.befriend(node)
	}
	for _, s := range t.spreads {
		if d, there := domainOf(node, s.constraint.TopologyKey); there {
			s.counts[d] += s.self
			s.measure()
		}
	}
}

// crowd is how many pods already stand where a copy would count, so that even places go first.
func (t *topology) crowd(node *corev1.Node) int {
	total := 0
	for _, s := range t.spreads {
		d, _ := domainOf(node, s.constraint.TopologyKey)
		total += s.counts[d]
	}
	return total
}

func newSpread(constraint corev1.TopologySpreadConstraint, shape *corev1.Pod, nodes []*corev1.Node, pods map[string][]*corev1.Pod) *spread {
	s := &spread{constraint: constraint, counts: map[domain]int{}}
	selector := selectorOf(constraint.LabelSelector)
	counted := func(pod *corev1.Pod) bool {
		return selector.Matches(labels.Set(pod.Labels)) && !slices.ContainsFunc(constraint.MatchLabelKeys, func(key string) bool {
			value, there := shape.Labels[key]
			return there && pod.Labels[key] != value
		})
	}
	if counted(shape) {
		s.self = 1
	}
	for _, node := range nodes {
		d, there := domainOf(node, constraint.TopologyKey)
		if !there || !counts(constraint, shape, node) {
			continue
		}
		s.counts[d] += 0
		for _, pod := range pods[node.Name] {
			if pod.Namespace == shape.Namespace && pod.DeletionTimestamp == nil && counted(pod) {
				s.counts[d]++
			}
		}
	}
	s.measure()
	return s
}

// counts says whether a node is one that a constraint looks at.
func counts(constraint corev1.TopologySpreadConstraint, shape *corev1.Pod, node *corev1.Node) bool {
	if policy := constraint.NodeAffinityPolicy; (policy == nil || *policy == corev1.NodeInclusionPolicyHonor) && !selected(node, shape) {
		return false
	}
	if policy := constraint.NodeTaintsPolicy; policy != nil && *policy == corev1.NodeInclusionPolicyHonor {
		_, keptOut := untolerated(node, shape)
		return !keptOut
	}
	return true
}

func (s *spread) allows(node *corev1.Node) bool {
	d, there := domainOf(node, s.constraint.TopologyKey)
	if !there {
		return false
	}
	return s.counts[d]+s.self-s.least <= int(s.constraint.MaxSkew)
}

func (s *spread) measure() {
	s.least = 0
	if domains := s.constraint.MinDomains; len(s.counts) == 0 || domains != nil && len(s.counts) < int(*domains) {
		return
	}
	s.least = slices.Min(slices.Collect(maps.Values(s.counts)))
}

func affinity(pod *corev1.Pod) []corev1.PodAffinityTerm {
	if a := pod.Spec.Affinity; a != nil && a.PodAffinity != nil {
		return a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

func antiAffinity(pod *corev1.Pod) []corev1.PodAffinityTerm {
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		return a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

// matches says whether a term of one pod speaks of another. Labels of namespaces are not known here:
// a term that selects namespaces by label is taken to select all, which promises too little rather
// than too much.
func matches(term *corev1.PodAffinityTerm, owner, other *corev1.Pod) bool {
	named := slices.Contains(term.Namespaces, other.Namespace)
	own := len(term.Namespaces) == 0 && term.NamespaceSelector == nil && other.Namespace == owner.Namespace
	if !named && !own && term.NamespaceSelector == nil {
		return false
	}
	return selectorOf(term.LabelSelector).Matches(labels.Set(other.Labels))
}

// befriends says whether a pod fulfils all terms of the shape. Here a selector of namespaces that is
// not for all is taken to select none, again so as not to promise too much.
func befriends(terms []corev1.PodAffinityTerm, shape, pod *corev1.Pod) bool {
	return !slices.ContainsFunc(terms, func(term corev1.PodAffinityTerm) bool {
		if s := term.NamespaceSelector; s != nil && len(s.MatchLabels)+len(s.MatchExpressions) > 0 {
			return !slices.Contains(term.Namespaces, pod.Namespace) || !selectorOf(term.LabelSelector).Matches(labels.Set(pod.Labels))
		}
		return !matches(&term, shape, pod)
	})
}

// selectorOf reads a selector; none, or one that cannot be parsed, selects nothing.
func selectorOf(selector *metav1.LabelSelector) labels.Selector {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return labels.Nothing()
	}
	return parsed
}
