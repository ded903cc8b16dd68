package checkpoint

import (
	"fmt"
	"testing"
)

// BenchmarkHandOver measures what stands between a barrier and a newcomer that loads: the agent takes
// 100 MiB over, and another fetches them. TMPDIR should be in memory, such as /dev/shm.
func BenchmarkHandOver(b *testing.B) {
	const size = 100 << 20
	data := content(1, size)
	from := open(b, 1)
	_, holder := serve(b, from)
	to := open(b, 1)
	var snapshot Snapshot
	var step uint64
	b.Run("Take", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			step++
			snapshot = put(b, from, ID{Round: 1, Step: step}, data)
		}
	})
	b.Run("Fetch", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if err := to.Retain(func(ID) bool { return false }); err != nil {
				b.Fatal(err)
			}
			if path, err := fetch(b.Context(), to, snapshot, with(snapshot, holder), fetcher); err != nil {
				b.Fatal(fmt.Errorf("%s: %w", path, err))
			}
		}
	})
}
