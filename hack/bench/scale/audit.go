package scale

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// request is one request that changes something, as the API server has written it down.
type request struct {
	Verb string `json:"verb"`
	User struct {
		Username string `json:"username"`
	} `json:"user"`
	Object struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	Response struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Received time.Time `json:"requestReceivedTimestamp"`
}

// writes is how much one user has written.
type writes struct {
	// pods are those that were created, leases the requests for leader election, other all the rest,
	// failed ones included: they cost the API server as much.
	pods, leases, other int
	// kinds says how often each kind of request is among other, such as "patch pods/status".
	kinds map[string]int
}

// add takes in a request.
func (w *writes) add(r request) {
	switch {
	case r.Object.Resource == "leases":
		w.leases++
	case r.Verb == "create" && r.Object.Resource == "pods" && r.Object.Subresource == "" && r.Response.Code < 300:
		w.pods++
	default:
		w.other++
		if w.kinds == nil {
			w.kinds = map[string]int{}
		}
		what := r.Verb + " " + r.Object.Resource
		if r.Object.Subresource != "" {
			what += "/" + r.Object.Subresource
		}
		w.kinds[what]++
	}
}

// minus is what came between two readings.
func (w writes) minus(before writes) writes {
	since := writes{pods: w.pods - before.pods, leases: w.leases - before.leases, other: w.other - before.other}
	since.kinds = maps.Clone(w.kinds)
	for kind, count := range before.kinds {
		if since.kinds[kind] -= count; since.kinds[kind] == 0 {
			delete(since.kinds, kind)
		}
	}
	return since
}

// String tells the kinds of request beside pods and leases.
func (w writes) String() string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(w.kinds)) {
		parts = append(parts, fmt.Sprintf("%d %s", w.kinds[kind], kind))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// audit counts the writes of each user so far.
func (s *server) audit() (map[string]writes, error) {
	file, err := os.Open(s.auditLog())
	if errors.Is(err, os.ErrNotExist) {
		return map[string]writes{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer func() { _ = file.Close() }()
	return countWrites(file)
}

// countWrites reads an audit log. A last line that is being written counts the next time.
func countWrites(log io.Reader) (map[string]writes, error) {
	counts := map[string]writes{}
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return counts, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		of := counts[r.User.Username]
		of.add(r)
		counts[r.User.Username] = of
	}
}
