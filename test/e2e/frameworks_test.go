package e2e

import (
	"context"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
	"github.com/concertina-dev/concertina/test/e2e/ledger"
)

// What examples/frameworks/points.py says.
const (
	pointsSamples, pointsBatch, pointsSteps = 480, 48, 30
	// pointsEvery is how often the programs save unasked, if nobody says otherwise.
	pointsEvery = 10
)

// pointsJob is a job of one of these programs.
type pointsJob struct {
	*elasticJob
}

// launchPoints submits the example, with further arguments of its program.
func launchPoints(ctx context.Context, namespace string, builder *framework.Job) *pointsJob {
	GinkgoHelper()
	name := builder.In(namespace).Name
	logs, err := cluster.RecordLogs(ctx, namespace, labels.Set{v1alpha1.LabelJob: name}, "trainer")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(logs.Stop)
	return &pointsJob{&elasticJob{job: submit(ctx, namespace, builder), logs: logs}}
}

// reaches waits until a step of the present world was told of by all ranks, for which this is true.
func (p *pointsJob) reaches(ctx context.Context, what string, fits func(step int) bool) {
	GinkgoHelper()
	Eventually(func() bool {
		round := int(*p.get(ctx).Status.World.Round)
		tails := p.logs.Tail(1)
		told, size := 0, 0
		for _, tail := range tails {
			for _, line := range ledger.ParsePoints(tail) {
				if size = line.Size; line.Round == round && fits(line.Step) {
					told++
				}
			}
		}
		return told > 0 && told == size
	}, 2*time.Minute).Should(BeTrue(), what)
}

// told is all that the programs have told, once the job is complete.
func (p *pointsJob) told(ctx context.Context) ledger.Points {
	GinkgoHelper()
	recorded, err := p.logs.Lines()
	Expect(err).NotTo(HaveOccurred())
	// What is followed may break off right before the last line.
	for _, pod := range p.pods(ctx, 0) {
		recorded[pod.Name] = nil
		for _, printed := range lines(ctx, &pod) {
			recorded[pod.Name] = append(recorded[pod.Name], printed.text)
		}
	}
	points := ledger.Points{Samples: pointsSamples, Batch: pointsBatch, Steps: pointsSteps, Every: pointsEvery}
	for _, text := range recorded {
		points.Told = append(points.Told, ledger.ParsePoints(text)...)
	}
	return points
}

// Python and a framework are loaded anew in each world, on the machine of all nodes: one job at a time.
var _ = Describe("The example of a framework", Label("frameworks"), Serial, func() {
	// All nodes of the local cluster see the folders of this machine.
	if framework.KindFromEnvironment() != framework.Local {
		return
	}
	BeforeEach(func(ctx context.Context) {
		Eventually(cluster.MissingImages, "30s", "1s").WithContext(ctx).WithArguments(framework.Frameworks).Should(Succeed())
	})
	DescribeTable("is trained in worlds that grow, lose a worker as planned and lose one at once, and each sample counts once",
		func(ctx context.Context, name string, saves bool) {
			namespace := newNamespace(ctx)
			folder := GinkgoT().TempDir()
			Expect(os.Chmod(folder, 0o777)).To(Succeed())
			remove, err := cluster.ExampleVolume(ctx, "frameworks/checkpoints.yaml", namespace, folder)
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(remove)
			recordOperator(ctx, namespace)
			example := func() *framework.Job {
				builder, err := cluster.Example("frameworks/" + name + ".yaml")
				Expect(err).NotTo(HaveOccurred())
				return builder
			}
			p := launchPoints(ctx, namespace, example().Workers(1, 2).Arguments("--step-seconds=1"))
			first := p.world(ctx, 0, 2)
			p.reaches(ctx, "a step in a world of 2", func(step int) bool { return step >= 2 })

			By("growing")
			p.scale(ctx, 3)
			grown := p.world(ctx, first, 3)
			Expect(p.resize(ctx, grown).Reason).To(Equal("CapacityAvailable"))
			p.reaches(ctx, "a step in a world of 3", func(int) bool { return true })

			By("evicting a worker")
			evict(ctx, pick(p.members(ctx)))
			left := p.world(ctx, grown, 3)
			p.reaches(ctx, "a step after a checkpoint", func(step int) bool { return step > pointsEvery && step%pointsEvery >= 3 && step%pointsEvery <= 7 })

			By("deleting a worker by force")
			lost := p.members(ctx)
			Expect(p.get(ctx).Status.World.Round).To(HaveValue(Equal(left)))
			loseByForce(ctx, pick(lost))
			p.completes(ctx, 4*time.Minute)
			p.expectRestarts(ctx, 0, 1)

			points := p.told(ctx)
			AddReportEntry("what "+name+" told", points, ReportEntryVisibilityFailureOrVerbose)
			Expect(points.CheckOnce()).To(Succeed())
			if saves {
				progress := p.get(ctx).Status.Progress
				Expect(progress.TotalSteps).To(HaveValue(BeEquivalentTo(pointsSteps)))
				Expect(progress.Step).To(HaveValue(BeEquivalentTo(pointsSteps)))
				Expect(points.CheckNothingLost(int(left))).To(Succeed())
			} else {
				Expect(points.CheckNewestCheckpoints()).To(Succeed())
			}

			By("training alone, undisturbed")
			alone := launchPoints(ctx, namespace, example().Named("alone").Workers(1, 1).Arguments("--checkpoints=/checkpoints/alone", "--step-seconds=0"))
			alone.completes(ctx, 3*time.Minute)
			Expect(points.CompareLosses(alone.told(ctx), sameLoss)).To(Succeed())
		},
		Entry("Accelerate", "accelerate", true),
		Entry("Hugging Face's Trainer", "transformers", true),
		Entry("Lightning", "lightning", true),
		Entry("DeepSpeed", "deepspeed", true),
		Entry("JAX", "jax", true),
		Entry("torchrun, whose program saves when it wants to", "torchrun", false),
	)
})
