package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// mostNear is how many names are offered to somebody who mistyped one.
const mostNear = 3

// Near are those of some names that somebody may have meant by another, the nearest first.
func Near(name string, names []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	var some []candidate
	for _, other := range names {
		d := distance(name, other)
		if strings.Contains(other, name) || strings.Contains(name, other) {
			d = min(d, 1)
		}
		if d <= max(1, len(name)/3) {
			some = append(some, candidate{other, d})
		}
	}
	slices.SortFunc(some, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), strings.Compare(a.name, b.name))
	})
	var near []string
	for _, one := range some[:min(len(some), mostNear)] {
		near = append(near, one.name)
	}
	return near
}

// distance is how many letters must be put in, left out or changed (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for i := range row {
		row[i] = i
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for k := range len(b) {
			changed := diagonal
			if a[i] != b[k] {
				changed++
			}
			diagonal = row[k+1]
			row[k+1] = min(changed, row[k]+1, row[k+1]+1)
		}
	}
	return row[len(b)]
}

// NotFound says that there is no such job, and which ones may have been meant.
func (l *Look) NotFound(name types.NamespacedName) error {
	var here, elsewhere []string
	for i := range l.jobs {
		switch object := l.jobs[i].object; {
		case object.Namespace == name.Namespace:
			here = append(here, object.Name)
		case object.Name == name.Name:
			elsewhere = append(elsewhere, object.Namespace)
		}
	}
	text := fmt.Sprintf("there is no job %s in namespace %s", name.Name, name.Namespace)
	near := Near(name.Name, here)
	switch {
	case len(elsewhere) > 0:
		return fmt.Errorf("%s; there is one of that name in %s: give --namespace", text, list(elsewhere))
	case len(near) > 0:
		return fmt.Errorf("%s; did you mean %s?", text, strings.Join(near, " or "))
	case len(here) == 0:
		return fmt.Errorf("%s: that namespace has no jobs", text)
	default:
		return fmt.Errorf("%s; it has %s", text, few(here, mostNamed))
	}
}
