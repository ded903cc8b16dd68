package fleet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSettings(t *testing.T) {
	for _, c := range []struct{ name, text, says string }{
		{"empty", "", ""},
		{"all", "minRuntime: 0s\nreclaimTimeout: 5s\nattemptTimeout: 20m\nbackfill: 1h\ncoolDown: 30s\nfirstRegrow: 2s\nlastRegrow: 1m\ncapacity: Autoscaled\n" +
			"deviceTypeLabels: [example.com/kind]\ndefaultNamespace: {weight: 3}\nnamespaces: {team: {weight: 5, headRoom: 10, allowNever: false, allowEvict: true}}", ""},
		{"a field that is not there", "minRunTime: 5s", `unknown field "minRunTime"`},
		{"values of the chart", "fleet: {minRuntime: 5s}", "give only what stands below fleet"},
		{"one of a namespace", "namespaces: {team: {wait: 5}}", `unknown field "namespaces.team.wait"`},
		{"twice", "backfill: 1m\nbackfill: 2m", "backfill"},
		{"no duration", "coolDown: soon", "soon"},
		{"too short", "attemptTimeout: 5s", "attemptTimeout is 5s, it must be from 10s to 168h0m0s"},
		{"too long", "reclaimTimeout: 2m", "reclaimTimeout is 2m0s, it must be from 1s to 1m0s"},
		{"below nothing", "minRuntime: -1s", "minRuntime is -1s"},
		{"backwards", "firstRegrow: 1m\nlastRegrow: 1s", "firstRegrow is 1m0s, beyond lastRegrow (1s)"},
		{"capacity", "capacity: Endless", `capacity is "Endless", it must be Fixed or Autoscaled`},
		{"label", "deviceTypeLabels: [\"a b\"]", `deviceTypeLabels[0]: "a b" is no label`},
		{"namespace", "namespaces: {Team: {}}", `namespaces: "Team" is no namespace`},
		{"weight", "namespaces: {team: {weight: 0}}", "namespaces.team.weight is 0, it must be from 1"},
		{"head-room", "defaultNamespace: {headRoom: 101}", "defaultNamespace.headRoom is 101"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "fleet.yaml")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := LoadSettings(path)
			switch {
			case c.says == "" && err != nil:
				t.Error(err)
			case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path)):
				t.Errorf("%v, want the file and %s", err, c.says)
			}
		})
	}
	if _, err := LoadSettings("/nowhere/fleet.yaml"); err == nil || !strings.Contains(err.Error(), "/nowhere/fleet.yaml") {
		t.Errorf("%v", err)
	}
	s, err := LoadSettings("")
	if err != nil {
		t.Fatal(err)
	}
	plan := s.Planning()
	if plan.MinRuntime != 10*time.Second || plan.ReclaimTimeout != time.Minute || plan.Backfill != 10*time.Minute || plan.CoolDown != 2*time.Minute ||
		plan.FirstRegrow != time.Second || plan.LastRegrow != 5*time.Minute || plan.Autoscaled {
		t.Errorf("defaults are %+v", plan)
	}
}
