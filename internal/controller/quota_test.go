package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// quotaOf allows so many pods, of which some are used.
func quotaOf(hard, used string, scopes ...corev1.ScopedResourceSelectorRequirement) corev1.ResourceQuota {
	quota := corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "team"}, Status: corev1.ResourceQuotaStatus{
		Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse(hard)},
		Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse(used)},
	}}
	if len(scopes) > 0 {
		quota.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: scopes}
	}
	return quota
}

func scope(name corev1.ResourceQuotaScope, operator corev1.ScopeSelectorOperator, values ...string) corev1.ScopedResourceSelectorRequirement {
	return corev1.ScopedResourceSelectorRequirement{ScopeName: name, Operator: operator, Values: values}
}

func TestQuotasWithScopes(t *testing.T) {
	const (
		class  = corev1.ResourceQuotaScopePriorityClass
		exists = corev1.ScopeSelectorOpExists
		in     = corev1.ScopeSelectorOpIn
		notIn  = corev1.ScopeSelectorOpNotIn
	)
	high := func(job *v1alpha1.TrainingJob) { job.Spec.Workers.Template.Spec.PriorityClassName = "high" }
	limited := func(job *v1alpha1.TrainingJob) {
		seconds := int64(60)
		job.Spec.Workers.Template.Spec.ActiveDeadlineSeconds = &seconds
	}
	plain := func(*v1alpha1.TrainingJob) {}
	for name, c := range map[string]struct {
		scope corev1.ScopedResourceSelectorRequirement
		job   func(*v1alpha1.TrainingJob)
		// short: the quota stands in the way; maybe: it may do so.
		short, maybe bool
	}{
		"its class":                 {scope(class, in, "low", "high"), high, true, true},
		"another class":             {scope(class, in, "low"), high, false, false},
		"any but its class":         {scope(class, notIn, "high"), high, false, false},
		"any but another class":     {scope(class, notIn, "low"), high, true, true},
		"any class":                 {scope(class, exists), high, true, true},
		"no class":                  {scope(class, corev1.ScopeSelectorOpDoesNotExist), high, false, false},
		"a class it may be given":   {scope(class, in, "low"), plain, false, true},
		"with a deadline":           {scope(corev1.ResourceQuotaScopeTerminating, exists), limited, true, true},
		"without a deadline":        {scope(corev1.ResourceQuotaScopeNotTerminating, exists), limited, false, false},
		"no deadline, as is usual":  {scope(corev1.ResourceQuotaScopeNotTerminating, exists), plain, true, true},
		"those that ask for it":     {scope(corev1.ResourceQuotaScopeNotBestEffort, exists), plain, true, true},
		"those that ask for none":   {scope(corev1.ResourceQuotaScopeBestEffort, exists), plain, false, false},
		"a scope nobody knows here": {scope("Weekdays", exists), plain, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			quotas := []corev1.ResourceQuota{quotaOf("1", "0", c.scope)}
			pod := newPod(jobWith(c.job), settings, 1, 0)
			if got := quotaShortage(quotas, pod, 2) != ""; got != c.short {
				t.Errorf("stands in the way: %v", got)
			}
			if got := shortageIn(quotas, pod, 2, true) != ""; got != c.maybe {
				t.Errorf("may stand in the way: %v", got)
			}
		})
	}
	plainScopes := quotaOf("1", "0")
	plainScopes.Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopeNotTerminating}
	if got := quotaShortage([]corev1.ResourceQuota{plainScopes}, newPod(jobWith(), settings, 1, 0), 2); !strings.Contains(got, "1 too few") {
		t.Errorf("scopes without a selector: %q", got)
	}
}

// Where the agent comes as a volume, no container of the operator's own asks for CPU or memory: a template that asks for devices
// alone makes pods that only quotas of best effort count.
func TestQuotasOfBestEffortWithTheAgentInAVolume(t *testing.T) {
	withVolume := settings
	withVolume.ImageVolume = true
	asks := func(requests corev1.ResourceList) *corev1.Pod {
		return newPod(jobWith(func(job *v1alpha1.TrainingJob) {
			job.Spec.Resize.Strategy = v1alpha1.ResizeRestart
			containers := job.Spec.Workers.Template.Spec.Containers
			for i := range containers {
				containers[i].Resources = corev1.ResourceRequirements{Requests: requests, Limits: requests}
			}
		}), withVolume, 1, 0)
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		best bool
	}{
		"devices alone": {asks(corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}), true},
		"CPUs":          {asks(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}), false},
	} {
		for kind, concerned := range map[corev1.ResourceQuotaScope]bool{
			corev1.ResourceQuotaScopeBestEffort: c.best, corev1.ResourceQuotaScopeNotBestEffort: !c.best,
		} {
			quotas := []corev1.ResourceQuota{quotaOf("1", "0", scope(kind, corev1.ScopeSelectorOpExists))}
			if got := quotaShortage(quotas, c.pod, 2) != ""; got != concerned {
				t.Errorf("%s: a quota of scope %s stands in the way: %v", name, kind, got)
			}
		}
	}
}

func TestWhichRefusalsAreForgiven(t *testing.T) {
	named := func(name string, age time.Duration) *v1alpha1.TrainingJob {
		return jobWith(func(job *v1alpha1.TrainingJob) {
			job.Name, job.UID, job.CreationTimestamp = name, types.UID(name), metav1.NewTime(start.Add(-age))
		})
	}
	// Two workers each.
	jobs := []*v1alpha1.TrainingJob{named("b", time.Hour), named("a", time.Hour), named("old", 2*time.Hour), named("forbidden", 3*time.Hour), named("new", 0)}
	broken, suspended := named("broken", 4*time.Hour), named("suspended", 4*time.Hour)
	broken.Spec.Workers.Template.Spec.Containers, suspended.Spec.Suspend = nil, ptr.To(true)
	jobs = append(jobs, broken, suspended)
	refusal := func(uid types.UID) *Refusal {
		switch uid {
		case "new":
			return nil
		case "forbidden":
			return &Refusal{Reason: v1alpha1.ReasonPodsForbidden}
		default:
			return &Refusal{Reason: v1alpha1.ReasonQuotaExceeded}
		}
	}
	unsure := scope(corev1.ResourceQuotaScopePriorityClass, corev1.ScopeSelectorOpDoesNotExist)
	for name, c := range map[string]struct {
		quotas []corev1.ResourceQuota
		limits bool
		want   []types.UID
	}{
		"what one lost again is not enough":      {quotas: []corev1.ResourceQuota{quotaOf("1", "0", unsure)}},
		"room for one: the oldest":               {quotas: []corev1.ResourceQuota{quotaOf("3", "0", unsure)}, want: []types.UID{"old"}},
		"room for two":                           {quotas: []corev1.ResourceQuota{quotaOf("5", "1", unsure)}, want: []types.UID{"old", "a"}},
		"no quota any more":                      {want: []types.UID{"old", "a", "b"}},
		"a limit has changed":                    {limits: true, quotas: []corev1.ResourceQuota{quotaOf("1", "0")}, want: []types.UID{"forbidden"}},
		"both quotas must have room":             {quotas: []corev1.ResourceQuota{quotaOf("9", "0"), quotaOf("1", "0", unsure)}},
		"a quota of others' pods does not count": {want: []types.UID{"old", "a", "b"}, quotas: []corev1.ResourceQuota{quotaOf("1", "0", scope(corev1.ResourceQuotaScopeBestEffort, corev1.ScopeSelectorOpExists))}},
	} {
		t.Run(name, func(t *testing.T) {
			before := quotaOf("1", "0")
			if len(c.quotas) > 0 {
				c.quotas[0].DeepCopyInto(&before)
			}
			var got []types.UID
			for _, job := range forgivable(jobs, refusal, c.quotas, c.limits, settings) {
				got = append(got, job.UID)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("forgives %v, want %v", got, c.want)
			}
			if len(c.quotas) > 0 && c.quotas[0].Status.Used.Pods().Cmp(*before.Status.Used.Pods()) != 0 {
				t.Error("what the cache holds was changed")
			}
		})
	}
}

func TestJobsThatWereRefusedAtOnceDoNotTryAtOnceAgain(t *testing.T) {
	var a, b Memory
	for count, pause := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
		a.refused(start, "a", 1, v1alpha1.ReasonQuotaExceeded, "")
		b.refused(start, "b", 1, v1alpha1.ReasonQuotaExceeded, "")
		for _, memory := range []Memory{a, b} {
			if got := memory.Refusal.Retry.Sub(start); got < pause || got > pause*5/4 {
				t.Errorf("pause %d is %s, want %s and up to a quarter more", count, got, pause)
			}
		}
		if apart := a.Refusal.Retry.Sub(b.Refusal.Retry).Abs(); apart < 100*time.Millisecond {
			t.Errorf("after refusal %d they are %s apart", count, apart)
		}
	}
}
