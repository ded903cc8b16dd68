package allocation

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkPlanDeadlines is a plan of 5,000 nodes and 2,000 jobs that may have up to so many workers each, without deadlines and with
// such as need far more than there is room for.
func BenchmarkPlanDeadlines(b *testing.B) {
	for _, most := range []int32{16, 200, 5000} {
		for _, due := range []bool{false, true} {
			c := thousands(3)
			known := truth{0.0001, 1}.pace(float64(min(most, 200))*3000, exactly)
			for i := range c.Jobs {
				j := &c.Jobs[i]
				if j.Pace, j.Max = known, most; due {
					j.Deadline = noon.Add(time.Hour)
				}
			}
			var p Planner
			b.Run(fmt.Sprintf("max=%d/due=%v", most, due), func(b *testing.B) {
				for b.Loop() {
					p.Plan(c)
				}
			})
		}
	}
}
