package checkpoint

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// span is some blocks: those from from to before to.
type span struct{ from, to uint64 }

func (s span) len() uint64 { return s.to - s.from }

// Spans are in order, and neither touch nor overlap.

// joined puts spans in order that may overlap, and leaves out the empty ones.
func joined(spans ...span) (all []span) {
	spans = slices.DeleteFunc(slices.Clone(spans), func(s span) bool { return s.from >= s.to })
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	for _, s := range spans {
		if last := len(all) - 1; last >= 0 && s.from <= all[last].to {
			all[last].to = max(all[last].to, s.to)
		} else {
			all = append(all, s)
		}
	}
	return all
}

// within is what of spans lies in one.
func within(spans []span, in span) (some []span) {
	for _, s := range spans {
		if s = (span{max(s.from, in.from), min(s.to, in.to)}); s.from < s.to {
			some = append(some, s)
		}
	}
	return some
}

// without is what of spans lies in none of others.
func without(spans, others []span) (rest []span) {
	for _, s := range spans {
		for _, o := range others {
			if o.to <= s.from {
				continue
			}
			if o.from >= s.to {
				break
			}
			if s.from < o.from {
				rest = append(rest, span{s.from, o.from})
			}
			s.from = min(o.to, s.to)
		}
		if s.from < s.to {
			rest = append(rest, s)
		}
	}
	return rest
}

// lenOf is how many blocks there are in spans.
func lenOf(spans []span) (n uint64) {
	for _, s := range spans {
		n += s.len()
	}
	return n
}

// textOf writes spans as spansIn reads them: 0-4,7-8.
func textOf(spans []span) string {
	var text strings.Builder
	for i, s := range spans {
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteString(strconv.FormatUint(s.from, 10) + "-" + strconv.FormatUint(s.to, 10))
	}
	return text.String()
}

// spansIn reads at most so many spans that lie in one; ok is false for anything else.
func spansIn(text string, in span, most int) (spans []span, ok bool) {
	at := in.from
	for one := range strings.SplitSeq(text, ",") {
		first, behind, _ := strings.Cut(one, "-")
		from, errFrom := strconv.ParseUint(first, 10, 64)
		to, errTo := strconv.ParseUint(behind, 10, 64)
		if errFrom != nil || errTo != nil || from < at || from >= to || to > in.to || len(spans) == most {
			return nil, false
		}
		spans, at = append(spans, span{from, to}), to
	}
	return spans, true
}
