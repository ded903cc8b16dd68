package scale

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// sample is one line of a metrics page.
type sample struct {
	name   string
	labels map[string]string
	value  float64
}

// metrics are the lines of one page.
type metrics []sample

var label = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"`)

// scrape reads the metrics page of a program of the bench.
func scrape(ctx context.Context, address string) (metrics, error) {
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read metrics: %s", response.Status)
	}
	return parseMetrics(response.Body)
}

// parseMetrics reads a page in Prometheus's text format; lines with a time are not expected.
func parseMetrics(page io.Reader) (metrics, error) {
	var all metrics
	lines := bufio.NewScanner(page)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		end := strings.LastIndexByte(line, ' ')
		if end < 0 {
			return nil, fmt.Errorf("malformed metric %q", line)
		}
		value, err := strconv.ParseFloat(line[end+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("malformed metric %q: %w", line, err)
		}
		s := sample{value: value, labels: map[string]string{}}
		var labels string
		s.name, labels, _ = strings.Cut(line[:end], "{")
		for _, match := range label.FindAllStringSubmatch(labels, -1) {
			s.labels[match[1]] = match[2]
		}
		all = append(all, s)
	}
	return all, lines.Err()
}

// sum adds up all lines of a metric that have these labels, given as name and value in turn.
func (m metrics) sum(name string, labels ...string) float64 {
	total := 0.0
	for _, s := range m {
		if s.name == name && s.has(labels) {
			total += s.value
		}
	}
	return total
}

func (s sample) has(labels []string) bool {
	for i := 0; i+1 < len(labels); i += 2 {
		if s.labels[labels[i]] != labels[i+1] {
			return false
		}
	}
	return true
}

// quantile estimates a quantile of a histogram, as Prometheus does: evenly spread within a bucket. What
// lies beyond the last bound counts as that bound. It is 0 for a histogram without observations.
func (m metrics) quantile(q float64, name string, labels ...string) float64 {
	byBound := map[float64]float64{}
	for _, s := range m {
		bound, err := strconv.ParseFloat(s.labels["le"], 64)
		if s.name == name+"_bucket" && err == nil && s.has(labels) {
			byBound[bound] += s.value
		}
	}
	var bounds []float64
	for bound := range byBound {
		bounds = append(bounds, bound)
	}
	slices.Sort(bounds)
	if len(bounds) == 0 {
		return 0
	}
	wanted := q * byBound[bounds[len(bounds)-1]]
	from, below := 0.0, 0.0
	for _, bound := range bounds {
		count := byBound[bound]
		switch {
		case count < wanted || count == below:
		case math.IsInf(bound, 1):
			return from
		default:
			return from + (bound-from)*(wanted-below)/(count-below)
		}
		if !math.IsInf(bound, 1) {
			from = bound
		}
		below = count
	}
	return 0
}
