package transfer

import (
	"slices"
	"testing"

	"github.com/concertina-dev/concertina/hack/bench/figures"
)

func TestFigures(t *testing.T) {
	got, err := Bench{MiB: 3, Times: 2, Memory: t.TempDir(), Kept: t.TempDir(), Say: t.Logf}.Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"replicate_over_tls", "restore_peer_over_tls", "restore_storage_over_cat", "transfer_rss_mib"} {
		if !slices.ContainsFunc(got, func(f figures.Figure) bool { return f.Name == name && f.Value > 0 }) {
			t.Errorf("there is no %s in %+v", name, got)
		}
	}
}
