package fleet

import (
	"errors"
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// Capacity says where room comes from.
type Capacity string

const (
	// Fixed: the nodes are those that are there.
	Fixed Capacity = "Fixed"
	// Autoscaled: pods that fit nowhere make nodes appear.
	Autoscaled Capacity = "Autoscaled"
)

// Sharing says how jobs of equal priority in one namespace share what is left over.
type Sharing string

const (
	// Even: in equal parts.
	Even Sharing = "Even"
	// ByValue: by what each makes of more workers, as it was measured.
	ByValue Sharing = "ByValue"
)

// DefaultDeviceTypeLabels are labels of nodes that tell devices apart that share a resource name.
var DefaultDeviceTypeLabels = []string{
	"nvidia.com/gpu.product",
	"amd.com/gpu.product-name",
	"cloud.google.com/gke-accelerator",
	"cloud.google.com/gke-tpu-accelerator",
	"k8s.amazonaws.com/accelerator",
	"karpenter.k8s.aws/instance-gpu-name",
	"accelerator",
}

// Settings are the operator's settings for all jobs of the cluster, as its file has them.
type Settings struct {
	// MinRuntime is how long a job keeps what it grew by before it is taken back. From 0s to 1h, default
	// 10s.
	MinRuntime *metav1.Duration `json:"minRuntime,omitempty"`
	// ReclaimTimeout bounds how long a lender may take to its barrier. From 1s to 60s, default 60s.
	ReclaimTimeout *metav1.Duration `json:"reclaimTimeout,omitempty"`
	// AttemptTimeout bounds how long a gang is tried of which no pod has a node, where only the scheduler can place it (Autoscaled, and
	// templates that are not modelled), whatever its gang.startTimeout. From 10s to 168h, which is the default.
	AttemptTimeout *metav1.Duration `json:"attemptTimeout,omitempty"`
	// Backfill is how long after it was queued others may start on what a gang waits for; room is kept for it
	// from then on. From 0s, which keeps it at once, to 168h, default 10m.
	Backfill *metav1.Duration `json:"backfill,omitempty"`
	// CoolDown is how long equal jobs are left alone after they were evened out, and a job takes nothing from equals by
	// value after it gave. From 0s to 24h, default 2m.
	CoolDown *metav1.Duration `json:"coolDown,omitempty"`
	// FirstRegrow and LastRegrow bound how long room that was reclaimed is not grown back into. From 0s to
	// 24h, default 1s and 5m.
	FirstRegrow *metav1.Duration `json:"firstRegrow,omitempty"`
	LastRegrow  *metav1.Duration `json:"lastRegrow,omitempty"`
	// Capacity is Fixed or Autoscaled, default Fixed.
	Capacity Capacity `json:"capacity,omitempty"`
	// Sharing is Even or ByValue, default Even.
	Sharing Sharing `json:"sharing,omitempty"`
	// DeviceTypeLabels are labels of nodes, the first that a node has tells the type of its devices.
	DeviceTypeLabels []string `json:"deviceTypeLabels,omitempty"`
	// DefaultNamespace holds for namespaces that Namespaces does not name, and for what it leaves out.
	DefaultNamespace NamespaceSettings `json:"defaultNamespace,omitzero"`
	// Namespaces are those of single namespaces.
	Namespaces map[string]NamespaceSettings `json:"namespaces,omitempty"`
}

// NamespaceSettings are those of the jobs of one namespace.
type NamespaceSettings struct {
	// Weight is its share of what is left over, relative to others. From 1 to 1000000, default 1.
	Weight *int64 `json:"weight,omitempty"`
	// HeadRoom is the part of its quotas, in percent, that growth leaves to others. From 0 to 100, default
	// 0.
	HeadRoom *int64 `json:"headRoom,omitempty"`
	// AllowNever and AllowEvict say whether spec.preemption.policy may be Never or Evict; Shrink is used
	// instead. Default true.
	AllowNever *bool `json:"allowNever,omitempty"`
	AllowEvict *bool `json:"allowEvict,omitempty"`
}

// LoadSettings reads a file, in YAML. An empty path is for the defaults.
func LoadSettings(path string) (Settings, error) {
	if path == "" {
		return ParseSettings(nil)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Settings{}, fmt.Errorf("read the settings of the fleet: %w", err)
	}
	settings, err := ParseSettings(text)
	if err != nil {
		return Settings{}, fmt.Errorf("settings of the fleet in %s: %w", path, err)
	}
	return settings, nil
}

// ParseSettings reads YAML, sets defaults and checks all fields. A field that is not known is an error.
func ParseSettings(text []byte) (Settings, error) {
	var s Settings
	object, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return Settings{}, err
	}
	wrong, err := json.UnmarshalStrict(object, &s)
	if err != nil {
		return Settings{}, err
	}
	wrong = append(wrong, looksLikeValues(object)...)
	for _, d := range []struct {
		name                  string
		field                 **metav1.Duration
		standard, least, most time.Duration
	}{
		{"minRuntime", &s.MinRuntime, 10 * time.Second, 0, time.Hour},
		{"reclaimTimeout", &s.ReclaimTimeout, time.Minute, time.Second, time.Minute},
		{"attemptTimeout", &s.AttemptTimeout, 7 * 24 * time.Hour, 10 * time.Second, 7 * 24 * time.Hour},
		{"backfill", &s.Backfill, 10 * time.Minute, 0, 7 * 24 * time.Hour},
		{"coolDown", &s.CoolDown, 2 * time.Minute, 0, 24 * time.Hour},
		{"firstRegrow", &s.FirstRegrow, time.Second, 0, 24 * time.Hour},
		{"lastRegrow", &s.LastRegrow, 5 * time.Minute, 0, 24 * time.Hour},
	} {
		if *d.field == nil {
			*d.field = &metav1.Duration{Duration: d.standard}
		}
		if got := (*d.field).Duration; got < d.least || got > d.most {
			wrong = append(wrong, fmt.Errorf("%s is %s, it must be from %s to %s", d.name, got, d.least, d.most))
		}
	}
	if s.FirstRegrow.Duration > s.LastRegrow.Duration {
		wrong = append(wrong, fmt.Errorf("firstRegrow is %s, beyond lastRegrow (%s)", s.FirstRegrow.Duration, s.LastRegrow.Duration))
	}
	switch s.Capacity {
	case "":
		s.Capacity = Fixed
	case Fixed, Autoscaled:
	default:
		wrong = append(wrong, fmt.Errorf("capacity is %q, it must be %s or %s", s.Capacity, Fixed, Autoscaled))
	}
	switch s.Sharing {
	case "":
		s.Sharing = Even
	case Even, ByValue:
	default:
		wrong = append(wrong, fmt.Errorf("sharing is %q, it must be %s or %s", s.Sharing, Even, ByValue))
	}
	if s.DeviceTypeLabels == nil {
		s.DeviceTypeLabels = DefaultDeviceTypeLabels
	}
	for i, label := range s.DeviceTypeLabels {
		for _, fault := range validation.IsQualifiedName(label) {
			wrong = append(wrong, fmt.Errorf("deviceTypeLabels[%d]: %q is no label: %s", i, label, fault))
		}
	}
	wrong = append(wrong, s.checkNamespaces()...)
	return s, errors.Join(wrong...)
}

// looksLikeValues says so of values of the chart, which have the settings one level below.
func looksLikeValues(object []byte) []error {
	var values struct {
		Fleet map[string]any `json:"fleet"`
	}
	if json.UnmarshalCaseSensitivePreserveInts(object, &values) != nil || values.Fleet == nil {
		return nil
	}
	return []error{errors.New("these look like values of the chart: give only what stands below fleet, without that word")}
}

func (s *Settings) checkNamespaces() []error {
	wrong := s.DefaultNamespace.check("defaultNamespace")
	for _, name := range sortedKeys(s.Namespaces) {
		for _, fault := range validation.IsDNS1123Label(name) {
			wrong = append(wrong, fmt.Errorf("namespaces: %q is no namespace: %s", name, fault))
		}
		one := s.Namespaces[name]
		wrong = append(wrong, one.check("namespaces."+name)...)
	}
	return wrong
}

func (n *NamespaceSettings) check(where string) []error {
	var wrong []error
	if w := n.Weight; w != nil && (*w < 1 || *w > 1000000) {
		wrong = append(wrong, fmt.Errorf("%s.weight is %d, it must be from 1 to 1000000", where, *w))
	}
	if h := n.HeadRoom; h != nil && (*h < 0 || *h > 100) {
		wrong = append(wrong, fmt.Errorf("%s.headRoom is %d, it must be from 0 to 100 (percent)", where, *h))
	}
	return wrong
}

// namespace is what holds for one namespace.
func (s *Settings) namespace(name string) allocation.Namespace {
	own, all := s.Namespaces[name], s.DefaultNamespace
	return allocation.Namespace{
		Name:         name,
		Weight:       firstOf(1, own.Weight, all.Weight),
		HeadRoom:     10 * firstOf(0, own.HeadRoom, all.HeadRoom),
		NeverAllowed: firstOf(true, own.AllowNever, all.AllowNever),
		EvictAllowed: firstOf(true, own.AllowEvict, all.AllowEvict),
	}
}

// firstOf is the first value that is set.
func firstOf[T any](standard T, values ...*T) T {
	for _, value := range values {
		if value != nil {
			return *value
		}
	}
	return standard
}

// Planning is the part that the planner reads.
func (s *Settings) Planning() allocation.Settings {
	duration := func(d *metav1.Duration) time.Duration {
		if d == nil {
			return 0
		}
		return d.Duration
	}
	return allocation.Settings{
		MinRuntime: duration(s.MinRuntime), ReclaimTimeout: duration(s.ReclaimTimeout), Backfill: duration(s.Backfill),
		CoolDown: duration(s.CoolDown), FirstRegrow: duration(s.FirstRegrow), LastRegrow: duration(s.LastRegrow),
		Autoscaled: s.Capacity == Autoscaled, ByValue: s.Sharing == ByValue,
	}
}
