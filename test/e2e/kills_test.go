package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

const (
	// kills is how often the operator is killed in the middle of a change.
	kills = 200
	// epochsOfKills is how long each of the jobs trains to which that happens: some seven minutes, so that what it prints
	// can be judged as a whole. As many jobs follow each other as it takes.
	epochsOfKills = 1000
	// latest is how long after a change began the operator is killed at the latest. Half of the kills come within a quarter of
	// that: a world that shrinks, or loses somebody, is another one within a second.
	latest = 2 * time.Second
)

// underKills is how often each sort of change comes in ten: of those that a job gets over by itself.
var underKills = map[string]int{"scale": 5, "killProgram": 2, "delete": 1, "forceDelete": 1, "killAgent": 1}

var _ = Describe("An operator that is killed while a world changes", Serial, func() {
	if framework.KindFromEnvironment() != framework.Local {
		return
	}
	It("leaves a job that trains as if nothing had happened, 200 times", long, func(ctx context.Context) {
		var names []string
		for _, name := range slices.Sorted(maps.Keys(underKills)) {
			for range underKills[name] {
				names = append(names, name)
			}
		}
		done, amid := 0, 0
		for done < kills {
			c := newCampaign(ctx, epochsOfKills)
			// The rest of its training is for the last change.
			for done < kills && c.step() < epochsOfKills*stepsOfAnEpoch*3/4 {
				did := disturbances[names[random.IntN(len(names))]](c, ctx)
				c.group = append(c.group, did)
				if c.killAmid(ctx, did.what, done+1) {
					amid++
				}
				done++
				// Some changes meet a leader that has yet to find out what the one before has left.
				if random.IntN(4) > 0 && !c.calm(ctx) {
					break
				}
			}
			c.ends(ctx, 15*time.Minute)
		}
		AddReportEntry("kills in the middle of a change", fmt.Sprintf("%d of %d", amid, done))
		Expect(amid).To(BeNumerically(">=", kills/2), "of %d kills", done)
	})
})

// killAmid kills the operator a moment after a change has begun, or as soon as the record of the next world is seen, which some
// of its members have heard of then, and others not. It says whether that world had not formed by then, as far as the operator that
// was killed has said.
func (c *campaign) killAmid(ctx context.Context, what string, number int) bool {
	GinkgoHelper()
	before := *c.get(ctx).Status.World.Round
	part := random.Float64()
	patience, aimed := time.Duration(part*part*float64(latest)), random.IntN(3) == 0
	if aimed {
		patience = 15 * time.Second // newcomers have to start
	}
	late, look := time.NewTimer(patience), time.NewTicker(2*time.Millisecond)
	defer late.Stop()
	defer look.Stop()
	for waits := true; waits; {
		select {
		case <-late.C:
			waits = false
		case <-look.C:
			waits = !aimed || c.newestRound() <= before
		}
	}
	c.group = append(c.group, c.killOperator(ctx))
	now := *c.get(ctx).Status.World.Round
	formed := strings.HasPrefix(c.condition(ctx, v1alpha1.ConditionTraining)(), fmt.Sprintf("True WorldFormed: round %d:", now))
	By(fmt.Sprintf("kill %d of %d: %s; round %d is the newest, %d before it, formed: %t", number, kills, what, now, before, formed))
	return now == before || !formed
}

// newestRound is that of the newest world that the job's status has told of.
func (c *campaign) newestRound() int64 {
	GinkgoHelper()
	worlds, err := c.worlds.Worlds()
	Expect(err).NotTo(HaveOccurred())
	newest := int64(0)
	for round := range worlds {
		newest = max(newest, round)
	}
	return newest
}
