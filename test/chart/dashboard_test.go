package chart

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// dashboard is what is looked at of a dashboard of Grafana.
type dashboard struct {
	UID        string `json:"uid"`
	Title      string `json:"title"`
	Templating struct {
		List []struct {
			Name string `json:"name"`
			// Definition is the query of a variable, empty for the data source.
			Definition string `json:"definition"`
		} `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type panel struct {
	ID         int    `json:"id"`
	Type       string `json:"type"`
	Title      string `json:"title"`
	Datasource source `json:"datasource"`
	GridPos    struct{ X, Y, W, H int }
	Targets    []struct {
		Expr         string `json:"expr"`
		LegendFormat string `json:"legendFormat"`
		Datasource   source `json:"datasource"`
	} `json:"targets"`
}

type source struct {
	UID string `json:"uid"`
}

// TestTheDashboardIsOfMetricsThatThereAre: docs/reasons.md has each, with the labels by which it is asked for and told.
func TestTheDashboardIsOfMetricsThatThereAre(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/reasons.md"))
	if err != nil {
		t.Fatal(err)
	}
	made := get[*corev1.ConfigMap](t, rendered(t, "dashboard: {enabled: true, annotations: {grafana_folder: Training}}"), "ConfigMap concertina-dashboard")
	if made.Labels["grafana_dashboard"] != "1" || made.Annotations["grafana_folder"] != "Training" {
		t.Errorf("labels %v, annotations %v", made.Labels, made.Annotations)
	}
	var board dashboard
	if err := json.Unmarshal([]byte(made.Data["concertina.json"]), &board); err != nil {
		t.Fatal(err)
	}
	if board.UID == "" || board.Title == "" || len(board.Panels) < 20 {
		t.Errorf("%q (%q) has %d panels", board.Title, board.UID, len(board.Panels))
	}
	variables := map[string]bool{"__rate_interval": true}
	asked := func(where, expr, legend string) {
		for _, fault := range faultsOf(string(page), expr, legend) {
			t.Errorf("%s: %s", where, fault)
		}
		for _, name := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(expr, -1) {
			if !variables[name[1]] {
				t.Errorf("%s: there is no variable %s before", where, name[1])
			}
		}
	}
	for _, one := range board.Templating.List {
		if one.Definition != "" {
			asked("variable "+one.Name, one.Definition, "")
		}
		variables[one.Name] = true
	}
	ids, cells := map[int]string{}, map[[2]int]string{}
	for i := range board.Panels {
		one := &board.Panels[i]
		if ids[one.ID] != "" || one.Title == "" {
			t.Errorf("panel %q has the number %d of %q", one.Title, one.ID, ids[one.ID])
		}
		ids[one.ID] = one.Title
		for x := range one.GridPos.W {
			for y := range one.GridPos.H {
				at := [2]int{one.GridPos.X + x, one.GridPos.Y + y}
				if cells[at] != "" || at[0] > 23 {
					t.Fatalf("panel %q lies over %q, or beyond the edge", one.Title, cells[at])
				}
				cells[at] = one.Title
			}
		}
		if one.Type != "row" && len(one.Targets) == 0 {
			t.Errorf("panel %q shows nothing", one.Title)
		}
		for _, target := range one.Targets {
			if one.Datasource.UID != "${datasource}" || target.Datasource.UID != "${datasource}" {
				t.Errorf("panel %q asks a data source that others do not have", one.Title)
			}
			asked("panel "+one.Title, target.Expr, target.LegendFormat)
		}
	}
}

// TestFaultsOfADashboardAreFound, or the test above says nothing.
func TestFaultsOfADashboardAreFound(t *testing.T) {
	const page = "| `concertina_some_total` | `reason` | x |\n"
	for expr, want := range map[string]int{
		`sum by (reason) (rate(concertina_some_total{reason="a"}[1m]))`: 0,
		`histogram_quantile(0.5, sum by (le) (concertina_some_total))`:  0,
		`sum by (cause) (concertina_some_total)`:                        1,
		`concertina_some_total{namespace=~"$namespace", reason="a"}`:    1,
		`concertina_other_total`:                                        1,
		`label_values(concertina_some_total, job)`:                      1,
		`sum(concertina_some_total`:                                     1,
	} {
		if got := faultsOf(page, expr, "{{reason}}"); len(got) != want {
			t.Errorf("%s: %q", expr, got)
		}
	}
	if got := faultsOf(page, "concertina_some_total", "{{node}}"); len(got) != 1 {
		t.Errorf("a legend of a label that is not there: %q", got)
	}
}

var (
	metricName = regexp.MustCompile(`concertina_\w+`)
	selector   = regexp.MustCompile(`(\w+)(?:=~|!~|!=|=)"`)
	grouping   = regexp.MustCompile(`\bby \(([^)]*)\)`)
	ofValues   = regexp.MustCompile(`^label_values\(.*, (\w+)\)$`)
	inLegend   = regexp.MustCompile(`\{\{(\w+)\}\}`)
	histogram  = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// faultsOf says which metrics of an expression, and which labels of these, a page does not have. An expression is of one metric.
func faultsOf(page, expr, legend string) (faults []string) {
	if strings.Count(expr, "(") != strings.Count(expr, ")") || strings.Count(expr, "{") != strings.Count(expr, "}") {
		faults = append(faults, "brackets that do not match in "+expr)
	}
	var labels []string
	for _, found := range [][][]string{selector.FindAllStringSubmatch(expr, -1), ofValues.FindAllStringSubmatch(expr, -1), inLegend.FindAllStringSubmatch(legend, -1)} {
		for _, one := range found {
			labels = append(labels, one[1])
		}
	}
	for _, one := range grouping.FindAllStringSubmatch(expr, -1) {
		labels = append(labels, strings.Split(one[1], ", ")...)
	}
	for _, metric := range metricName.FindAllString(expr, -1) {
		row := rowOf(page, metric)
		if row == "" {
			faults = append(faults, "docs/reasons.md has no "+metric)
			continue
		}
		for _, label := range labels {
			if label != "le" && !strings.Contains(row, "`"+label+"`") {
				faults = append(faults, metric+" has no label "+label)
			}
		}
	}
	return faults
}

// rowOf is the row of a metric; a histogram has it under its own name.
func rowOf(page, metric string) string {
	for _, name := range []string{metric, histogram.ReplaceAllString(metric, "")} {
		if row := regexp.MustCompile("(?m)^\\|.*`" + name + "`.*$").FindString(page); row != "" {
			return row
		}
	}
	return ""
}
