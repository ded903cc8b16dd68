package e2e

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/concertina-dev/concertina/test/e2e/framework"
)

var _ = Describe("kubectl", short, func() {
	It("explains the fields", func(ctx context.Context) {
		text, err := cluster.Kubectl(ctx, "explain", "trainingjob.spec.workers.min")
		Expect(err).NotTo(HaveOccurred())
		Expect(text).To(ContainSubstring("the number of workers that start together or not at all"))
	})

	It("shows workers, round, step and age of a job that trains", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		j := submit(ctx, namespace, framework.NewJob("digits", "--epochs=2", "--step-time=50ms"))
		j.completes(ctx, time.Minute)
		text, err := cluster.Kubectl(ctx, "get", "trainingjobs", "--namespace", namespace)
		Expect(err).NotTo(HaveOccurred())
		rows := strings.Split(strings.TrimSpace(text), "\n")
		Expect(rows).To(HaveLen(2))
		Expect(strings.Fields(rows[0])).To(Equal([]string{"NAME", "WORKERS", "ROUND", "STEP", "AGE"}))
		row := strings.Fields(rows[1])
		Expect(row[:3]).To(Equal([]string{"digits", "0/2-2", "1"}))
		Expect(row[3]).To(MatchRegexp(`^\d+$`))
	})
})
