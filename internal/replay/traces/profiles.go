package traces

import (
	"fmt"
	"path/filepath"

	"github.com/concertina-dev/concertina/internal/replay"
)

var (
	applicationColumns = []string{"application", "init_batch_size", "max_batch_size", "min_local_bsz", "max_local_bsz",
		"epochs", "completion_epoch", "replica_cap", "target_batch_sizes"}
	throughputColumns = []string{"table", "placement", "num_nodes", "num_replicas", "local_bsz", "step_time_s", "sync_time_s"}
	progressColumns   = []string{"epoch", "progress"}
	batchColumns      = []string{"batch_size", "epoch", "gain", "iterations"}
)

// kind is what jobs have in common that train alike.
type kind struct {
	application string
	batch       int
}

// folder is one with profiles: apps.csv, throughput/APPLICATION.csv, epochs/APPLICATION-progress.csv and -batch.csv.
type folder struct {
	path     string
	profiles map[string]*replay.Profile
	programs map[kind]*replay.Training
}

func (f *folder) program(k kind) (*replay.Training, error) {
	if known := f.programs[k]; known != nil {
		return known, nil
	}
	if f.profiles == nil {
		if err := f.readApplications(); err != nil {
			return nil, err
		}
	}
	profile := f.profiles[k.application]
	if profile == nil {
		return nil, fmt.Errorf("application %q is not in %s", k.application, filepath.Join(f.path, "apps.csv"))
	}
	if profile.Measured == nil {
		if err := f.readTables(profile); err != nil {
			return nil, err
		}
	}
	program, err := profile.Training(k.batch)
	if err != nil {
		return nil, fmt.Errorf("the profiles in %s: %w", f.path, err)
	}
	f.programs[k] = program
	return program, nil
}

func (f *folder) readApplications() error {
	f.profiles = map[string]*replay.Profile{}
	return readTable(filepath.Join(f.path, "apps.csv"), applicationColumns, func(l *line) error {
		p := &replay.Profile{
			Name: l.text("application"),
			Limits: replay.Limits{
				InitBatch: l.integer("init_batch_size", 1, most), MaxBatch: l.integer("max_batch_size", 1, most),
				MinLocal: l.integer("min_local_bsz", 1, most), MaxLocal: l.integer("max_local_bsz", 1, most),
			},
			Cap: l.integer("replica_cap", 1, most),
		}
		// A job is done when it has finished more epochs than this.
		p.Epochs = l.integer("completion_epoch", 0, l.integer("epochs", 1, most)-1) + 1
		f.profiles[p.Name] = p
		return nil
	})
}

func (f *folder) readTables(p *replay.Profile) error {
	p.Measured, p.Interpolated = map[replay.MeasuredAt]replay.Passes{}, map[replay.InterpolatedAt]replay.Passes{}
	err := readTable(filepath.Join(f.path, "throughput", p.Name+".csv"), throughputColumns, func(l *line) error {
		times := replay.Passes{All: l.positive("step_time_s", most), Exchange: l.decimal("sync_time_s", 0, most)}
		if times.Exchange > times.All {
			l.fault("sync_time_s is above step_time_s")
		}
		local := l.integer("local_bsz", 1, most)
		switch table := l.text("table"); table {
		case "measured":
			p.Measured[replay.MeasuredAt{Placement: l.text("placement"), Local: local}] = times
		case "interpolated":
			p.Interpolated[replay.InterpolatedAt{
				Nodes: l.integer("num_nodes", 1, most), Workers: l.integer("num_replicas", 1, most), Local: local,
			}] = times
		default:
			l.fault("table is %q, it must be measured or interpolated", table)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := f.readProgress(p); err != nil {
		return err
	}
	p.Gains, p.Steps = map[int][]float64{}, map[int][]float64{}
	return readTable(filepath.Join(f.path, "epochs", p.Name+"-batch.csv"), batchColumns, func(l *line) error {
		batch := l.integer("batch_size", 1, most)
		if epoch := l.integer("epoch", 0, most); epoch != len(p.Gains[batch]) {
			l.fault("epoch is %d, it must be %d, the next of this batch", epoch, len(p.Gains[batch]))
		}
		p.Gains[batch] = append(p.Gains[batch], l.positive("gain", mostDecimal))
		p.Steps[batch] = append(p.Steps[batch], l.positive("iterations", mostDecimal))
		return nil
	})
}

func (f *folder) readProgress(p *replay.Profile) error {
	file := filepath.Join(f.path, "epochs", p.Name+"-progress.csv")
	err := readTable(file, progressColumns, func(l *line) error {
		if epoch := l.integer("epoch", 0, most); epoch != len(p.Progress) {
			l.fault("epoch is %d, it must be %d", epoch, len(p.Progress))
		}
		least := 0.0
		if n := len(p.Progress); n > 0 {
			least = p.Progress[n-1]
		}
		p.Progress = append(p.Progress, l.decimal("progress", least, mostDecimal))
		return nil
	})
	if err == nil && len(p.Progress) <= p.Epochs {
		err = fmt.Errorf("%s: there are %d epochs, there must be %d and the one before the first", file, len(p.Progress), p.Epochs)
	}
	return err
}
