package e2e

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// expectNamesUsedOnce checks that no name belonged to two pods.
func expectNamesUsedOnce(changes []framework.Change) {
	GinkgoHelper()
	names := map[string]types.UID{}
	for _, change := range changes {
		if known, seen := names[change.Pod.Name]; seen {
			Expect(known).To(Equal(change.Pod.UID), "%s was used twice", change.Pod.Name)
		}
		names[change.Pod.Name] = change.Pod.UID
	}
}

// expectGangOrNothing checks that no workers or at least so many hold room. While a gang starts and
// ends it may be fewer for a moment; survivors of a loss wait for others, but not for ever.
func expectGangOrNothing(changes []framework.Change, fewest int) {
	GinkgoHelper()
	gangs := map[string][]framework.Occupation{}
	for _, held := range framework.Occupations(changes) {
		gangs[held.Gang] = append(gangs[held.Gang], held)
	}
	for _, all := range gangs {
		for _, few := range stretchesBelow(all, fewest) {
			bound := partial
			if few.wasWhole {
				bound = regroupTimeout + partial
			}
			Expect(few.lasted).To(BeNumerically("<", bound), "%s\n%s", few.first, framework.Describe(changes))
		}
	}
}

// stretch is a time during which a gang held room for some workers, but for too few.
type stretch struct {
	first framework.Occupation
	// wasWhole is true when it had enough before.
	wasWhole bool
	lasted   time.Duration
}

// stretchesBelow finds them in the occupations of one gang, which follow each other.
func stretchesBelow(all []framework.Occupation, fewest int) []stretch {
	var found []stretch
	below, whole := false, false
	for _, held := range all {
		few := held.Bound > 0 && held.Bound < fewest
		switch {
		case few && below:
			found[len(found)-1].lasted += held.For
		case few:
			found = append(found, stretch{first: held, wasWhole: whole, lasted: held.For})
		case held.Bound >= fewest:
			whole = true
		}
		below = few
	}
	return found
}
