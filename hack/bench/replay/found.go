package replay

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// found are the workloads of a folder, whether anything was published of them or not: those of load 1.0 are in workloads, those of
// another one in workloads-LOAD.
func found(folder string) ([]*workload, error) {
	files, err := filepath.Glob(filepath.Join(folder, "workloads*", "*.csv"))
	if err != nil {
		return nil, err
	}
	var all []*workload
	for _, file := range files {
		load := strings.TrimPrefix(filepath.Base(filepath.Dir(file)), "workloads")
		switch {
		case load == "":
			load = "1.0"
		case !strings.HasPrefix(load, "-"):
			continue // something else that begins like this
		default:
			load = load[1:]
		}
		if x, err := strconv.ParseFloat(load, 64); err != nil || !(x > 0) {
			return nil, fmt.Errorf("%s: the folder's name is to end with the load, a number above 0", filepath.Dir(file))
		}
		all = append(all, &workload{load: load, name: strings.TrimSuffix(filepath.Base(file), ".csv"), file: file})
	}
	if len(all) == 0 {
		return nil, errors.New(folder + " has no workloads: they are in workloads/*.csv and workloads-LOAD/*.csv")
	}
	slices.SortFunc(all, func(a, b *workload) int {
		return cmp.Or(cmp.Compare(a.atLoad(), b.atLoad()), cmp.Compare(a.name, b.name))
	})
	return all, nil
}

// atLoad is how much work its jobs bring, relative to what is usual.
func (w *workload) atLoad() float64 {
	load, _ := strconv.ParseFloat(w.load, 64) // it was looked at when it was found
	return load
}
