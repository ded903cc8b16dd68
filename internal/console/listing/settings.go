package listing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/concertina-dev/concertina/internal/fleet"
)

// LabelSettings is on the ConfigMap that holds the operator's settings for all jobs, with the value SettingsOfFleet,
// whatever its name.
const (
	LabelSettings   = "training.concertina.dev/settings"
	SettingsOfFleet = "fleet"
)

// settingsKey is the key of that ConfigMap under which the settings are, operatorKey that of flags of the operator that a plan
// depends on too.
const settingsKey, operatorKey = "fleet.yaml", "operator.yaml"

// Settings are what a plan depends on beside the objects of the cluster.
type Settings struct {
	fleet.Settings
	// Operator is empty where the ConfigMap is of a chart that did not write it yet.
	Operator Operator
}

// Operator is what flags of the operator say. Fields that are not known here are of later versions.
type Operator struct {
	// DrainTaints are --drain-taints; nil for what the operator comes with.
	DrainTaints []string `json:"drainTaints"`
	// CheckpointMemoryMost is --checkpoint-memory-most; 0 for what it comes with.
	CheckpointMemoryMost resource.Quantity `json:"checkpointMemoryMost"`
	// AgentFrom is --agent-from.
	AgentFrom string `json:"agentFrom"`
}

// ErrNoSettings means that no ConfigMap of a namespace holds the operator's settings.
var ErrNoSettings = errors.New("no ConfigMap with the label " + LabelSettings + "=" + SettingsOfFleet)

// Settings reads the operator's settings for all jobs out of the ConfigMap of that name, or, with an empty one,
// out of the one in the namespace that has the label. Errors: ErrNoSettings, NotFound, Denied.
func (l *Lister) Settings(ctx context.Context, namespace, name string) (Settings, error) {
	found, err := l.settingsMap(ctx, namespace, name)
	if err != nil {
		return Settings{}, err
	}
	var settings Settings
	if err := yaml.Unmarshal([]byte(found.Data[operatorKey]), &settings.Operator); err != nil {
		return Settings{}, fmt.Errorf("flags of the operator in ConfigMap %s/%s, key %s: %w", namespace, found.Name, operatorKey, err)
	}
	settings.Settings, err = fleet.ParseSettings([]byte(found.Data[settingsKey]))
	if err != nil {
		return Settings{}, fmt.Errorf("settings of the fleet in ConfigMap %s/%s, key %s: %w", namespace, found.Name, settingsKey, err)
	}
	return settings, nil
}

func (l *Lister) settingsMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	if name != "" {
		var one corev1.ConfigMap
		err := l.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &one)
		return &one, l.told("get", "configmaps", namespace, err)
	}
	var all []*corev1.ConfigMap
	err := list(ctx, l, "configmaps", &corev1.ConfigMapList{}, &all, client.InNamespace(namespace), client.MatchingLabels{LabelSettings: SettingsOfFleet})
	switch {
	case err != nil:
		return nil, err
	case len(all) == 0:
		return nil, fmt.Errorf("namespace %s has %w", namespace, ErrNoSettings)
	case len(all) == 1:
		return all[0], nil
	}
	var names []string
	for _, one := range all {
		names = append(names, one.Name)
	}
	slices.Sort(names)
	return nil, fmt.Errorf("several ConfigMaps of namespace %s have the label %s=%s (%s): choose one with --fleet-configmap",
		namespace, LabelSettings, SettingsOfFleet, strings.Join(names, ", "))
}
