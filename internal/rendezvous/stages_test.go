package rendezvous

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// checkUnderway compares what a leader says of a change with what it tells its members and the controller.
func (f *fleet) checkUnderway(l *modelLeader) {
	u, phase := l.machine.Underway(), PhaseForming
	if !u.Over {
		phase, _ = l.machine.doing()
	}
	wrong := func(what string) { f.t.Fatalf("leader %d says %+v in phase %s: %s", l.id, u, phase, what) }
	changing := phase == PhaseResizing || phase == PhaseRecovering || phase == PhaseRegrouping
	switch {
	case u.Left > 0 && u.Round > 0:
		wrong("a world is left, and another is published")
	case u.Left > 0 && !changing:
		wrong("a world is left, and the phase is another")
	case changing && u.Stage == StageNone && (l.machine.world.formed() || l.machine.change != nil || l.machine.broken != nil):
		wrong("nothing is under way") // a member that is yet to report its world may have made a step in it
	case u.Stage == StageRegroup && phase != PhaseRegrouping:
		wrong("nobody regroups")
	case (u.Stage == StageForm || u.Stage == StageStep) && u.Round != l.machine.world.record.Round:
		wrong("the world is another")
	case u.Awaited < 0 || u.Awaited > int(u.To):
		wrong("so many are not awaited")
	}
	for _, uid := range f.uids() {
		d, ok := l.machine.Directive(uid)
		if !ok || u.Left == 0 || u.Over || l.machine.world.finishing || l.machine.world.ranks.rank(uid) < 0 {
			continue
		}
		if stands := d.Barrier != nil; stands != (u.Barrier > 0) || stands && d.Barrier.Attempt != u.Barrier {
			wrong("members are told of another barrier")
		}
		if d.Abort != nil && u.Stage == StageBarrier {
			wrong("members are told to leave")
		}
	}
}

// How a member was lost follows from what is known of it.
func TestCausesOfLosses(t *testing.T) {
	joined := func(change func(*member)) *member {
		mem := &member{joined: true, connected: true}
		change(mem)
		return mem
	}
	for name, row := range map[string]struct {
		program bool
		mem     *member
		want    LossCause
	}{
		"its pod is gone":                    {mem: nil, want: LossPod},
		"its program ended, its pod is gone": {program: true, mem: nil, want: LossExit},
		"its node is gone":                   {mem: joined(func(m *member) { m.want.Lost = "node a is gone" }), want: LossPod},
		"its pod has ended":                  {mem: joined(func(m *member) { m.want.Ended = true }), want: LossPod},
		"its program ended":                  {program: true, mem: joined(func(m *member) { m.report.Processes = []Process{{Exited: true, ExitCode: 1}} }), want: LossExit},
		"its program ended well, too early":  {program: true, mem: joined(func(m *member) { m.endedAt = m.endedAt.Add(1) }), want: LossExit},
		"its program raised an exception":    {program: true, mem: joined(func(m *member) { m.faultedAt = m.faultedAt.Add(1) }), want: LossFault},
		"it hangs":                           {program: true, mem: joined(func(*member) {}), want: LossHang},
		"it was never heard":                 {mem: &member{}, want: LossUnheard},
		"it is silent":                       {mem: joined(func(m *member) { m.silent = true }), want: LossSilence},
		"it hung up, and others miss it":     {mem: joined(func(m *member) { m.connected = false }), want: LossSession},
		"it did not leave its world in time": {mem: joined(func(*member) {}), want: LossStuck},
		"it was silent, then its pod ended":  {mem: joined(func(m *member) { m.silent, m.want.Ended = true, true }), want: LossPod},
	} {
		if got := causeOf(&Loss{Program: row.program}, row.mem); got != row.want {
			t.Errorf("%s: the cause is %s, want %s", name, got, row.want)
		}
	}
}

// constants are the values of all constants of a type, by their names, as the package's own source has them.
func constants(t *testing.T, of string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			kind, typed := spec.Type.(*ast.Ident)
			value, literal := spec.Values[0].(*ast.BasicLit)
			if typed && literal && kind.Name == of {
				if found[spec.Names[0].Name], err = strconv.Unquote(value.Value); err != nil {
					t.Fatal(err)
				}
			}
			return true
		})
	}
	return found
}

// What is not in these lists has no name in metrics.
func TestListsOfWordsAreWhole(t *testing.T) {
	for of, list := range map[string][]string{"Reason": words(Reasons), "Stage": words(Stages), "LossCause": words(LossCauses)} {
		all := constants(t, of)
		maps.DeleteFunc(all, func(_, value string) bool { return value == "" })
		if want := slices.Sorted(maps.Values(all)); len(want) == 0 || !slices.Equal(slices.Sorted(slices.Values(list)), want) {
			t.Errorf("of the type %s there are %s, and listed are %s", of, strings.Join(want, ", "), strings.Join(list, ", "))
		}
	}
}

func words[T ~string](list []T) []string {
	all := make([]string, len(list))
	for i, one := range list {
		all[i] = string(one)
	}
	return all
}
