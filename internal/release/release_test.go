package release

import (
	"strings"
	"testing"
)

func TestWhatIsToldOfAVersion(t *testing.T) {
	info := Get()
	if text := info.String(); info.Version == "" || !strings.HasPrefix(text, info.Version+" (protocol of agents 2, manifests of checkpoints up to 3") {
		t.Errorf("the line is %q", text)
	}
}
