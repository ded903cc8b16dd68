package storage

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

const (
	manifestName = "manifest.json"
	dataName     = "data"
	holdsName    = "holds"
	doomedName   = "doomed"
	partsName    = "parts"
	scoresName   = "scores"
)

// Place is where one checkpoint of a job is, or will be.
type Place struct {
	Job     Job
	Attempt int32
	checkpoint.ID
}

// Path is the folder, below the prefix of the URL, without a slash at its ends.
func (p Place) Path() string {
	return fmt.Sprintf("%s/attempt-%d/%s", p.Job.path(), p.Attempt, p.ID)
}

func (p Place) manifest() string             { return p.Path() + "/" + manifestName }
func (p Place) data(name string) string      { return p.Path() + "/" + dataName + "/" + name }
func (p Place) hold(reader string) string    { return p.Path() + "/" + holdsName + "/" + reader }
func (p Place) score(name string) string     { return p.Path() + "/" + scoresName + "/" + name }
func (p Place) doomed(deleter string) string { return p.Path() + "/" + doomedName + "/" + deleter }

func (j Job) path() string { return path.Join(j.Namespace, j.Name, j.UID) }

// label is what a namespace, the name of a job and a uid look like.
var label = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$`)

func (j Job) check() error {
	for _, name := range []string{j.Namespace, j.Name, j.UID} {
		if !label.MatchString(name) || strings.Contains(name, "..") {
			return fmt.Errorf("%.100q is no name of a job, a namespace or a uid", name)
		}
	}
	return nil
}

// parsePlace reads a folder's path, and what follows it; ok is false when the path leads into no checkpoint.
func parsePlace(key string) (place Place, rest string, ok bool) {
	fields := strings.SplitN(key, "/", 6)
	if len(fields) < 6 {
		return Place{}, "", false
	}
	place.Job = Job{fields[0], fields[1], fields[2]}
	attempt, found := strings.CutPrefix(fields[3], "attempt-")
	number, err := strconv.ParseInt(attempt, 10, 32)
	if !found || err != nil || number < 0 || place.Job.check() != nil {
		return Place{}, "", false
	}
	place.Attempt = int32(number)
	place.ID, ok = checkpoint.ParseID(fields[4])
	return place, fields[5], ok && strings.HasPrefix(key, place.Path()+"/")
}

// newestFirst orders checkpoints: of one job a later round goes on from an earlier one, also where it went back
// to an earlier step. Jobs come in the order of what they wrote last.
func newestFirst(all []*contents) {
	last := map[Job]time.Time{}
	for _, c := range all {
		if c.changed.After(last[c.place.Job]) {
			last[c.place.Job] = c.changed
		}
	}
	slices.SortFunc(all, func(a, b *contents) int {
		if a.place.Job != b.place.Job {
			return cmp.Or(last[b.place.Job].Compare(last[a.place.Job]), cmp.Compare(a.place.Job.path(), b.place.Job.path()))
		}
		return cmp.Or(checkpoint.CompareIDs(b.place.ID, a.place.ID), cmp.Compare(b.place.Attempt, a.place.Attempt))
	})
}
