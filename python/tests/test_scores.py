"""What an evaluation finds is said of the state that is evaluated, and of that there is a snapshot."""

import os

import concertina
from concertina.gate import Phase
from tests.fakeagent import FakeAgent, world
from tests.test_job import Case, train


class Weights:
    """A state that each step changes, and an evaluation as well."""

    def __init__(self):
        self.values = {"weights": 0, "seen": 0}

    def state_dict(self):
        return dict(self.values)

    def load_state_dict(self, values):
        self.values.update(values)


def kept(agent: FakeAgent, message: dict) -> str:
    """The text of a snapshot's file, which the agent has not taken over."""
    with open(os.path.join(agent.snapshots, message["file"]), "rb") as file:
        return file.read().decode(errors="replace")


class Scores(Case):
    def run_with(self, report, best="accuracy", worlds=(), **options):
        """Trains with an agent that wants a metric; returns it, and what it was told but for progress."""
        agent = self.agent(*worlds)
        agent.greeting = {"best": best} if best else {}
        weights = Weights()

        def body(step):
            if step.evaluates:
                weights.values["seen"] += 1
                report(step)
            else:
                weights.values["weights"] = step.number
                step.report(accuracy=-1.0)

        train(state={"net": weights}, body=body, **({"evaluate": "epoch"} | options))
        files = {}
        told = [message for message in agent.received() if message["type"] not in ("progress", "hello", "join")]
        for message in told:
            if message["type"] == "snapshot":
                files[message["step"]] = kept(agent, message)
        return told, files

    def test_each_state_that_is_evaluated_has_a_snapshot_and_a_score(self):
        told, files = self.run_with(lambda step: step.report(loss=9.0, accuracy=step.number / 10))
        said = [(m["type"], m["step"]) for m in told if m["step"] > 0]
        self.assertEqual(sorted(said[:-1]), [("score", 3), ("score", 6), ("snapshot", 3), ("snapshot", 6)])
        self.assertEqual(said[-1], ("finished", 6), "what is written of the last state is there before the training is over")
        self.assertEqual([m["value"] for m in told if m["type"] == "score"], [0.3, 0.6])
        for step, seen in (3, 0), (6, 1):
            self.assertIn(f'["weights", {step}], ["seen", {seen}]', files[step])

    def test_no_agent_that_wants_none_hears_of_any(self):
        told, _ = self.run_with(lambda step: step.report(accuracy=0.5), best="")
        self.assertEqual([m["type"] for m in told if m["step"] > 0], ["finished"])

    def test_who_writes_nothing_and_who_has_another_rank(self):
        told, files = self.run_with(lambda step: step.report(accuracy=0.5), worlds=[world(0, 2, writer=False)])
        self.assertEqual([m["type"] for m in told], ["score", "score", "finished"])
        self.assertEqual(files, {})
        told, files = self.run_with(lambda step: step.report(accuracy=0.5), worlds=[world(1, 2)])
        self.assertEqual([m["type"] for m in told if m["step"] > 0], ["snapshot", "snapshot", "finished"])

    def test_what_is_no_score_is_told_in_words(self):
        for what, report, words in [
            ("nothing", lambda step: None, "evaluations report nothing, and spec.checkpoint.storage.best wants accuracy"),
            ("another", lambda step: step.report(loss=1.0, f1=0.5), "evaluations report f1, loss, and spec"),
            ("nan", lambda step: step.report(accuracy=float("nan")), "an evaluation reports accuracy=nan"),
            ("inf", lambda step: step.report(accuracy=-float("inf")), "an evaluation reports accuracy=-inf"),
        ]:
            with self.subTest(what):
                told, _ = self.run_with(report, epochs=1)
                (score,) = [m for m in told if m["type"] == "score"]
                self.assertIn(words, score["error"])
                self.assertNotIn("value", score)

    def test_what_is_no_number_ends_the_program_with_its_name(self):
        for bad in "high", [1, 2], None:
            with self.subTest(bad), self.assertRaises((TypeError, ValueError)) as caught:
                self.run_with(lambda step: step.report(accuracy=bad), epochs=1)
            self.assertIn("report(accuracy=…) got a", "".join(caught.exception.__notes__))

    def test_what_is_no_number_ends_a_program_that_nobody_listens_to(self):
        with self.assertRaises((TypeError, ValueError)) as caught:
            train(epochs=1, evaluate="epoch", body=lambda step: step.report(accuracy="high") if step.evaluates else None)
        self.assertIn("report(accuracy=…) got a str", "".join(caught.exception.__notes__))

    def test_a_training_without_evaluation_says_so(self):
        told, _ = self.run_with(lambda step: None, evaluate=None)
        (score,) = [m for m in told if m["type"] == "score"]
        self.assertIn("job.steps() is given no evaluate=, and spec.checkpoint.storage.best wants accuracy", score["error"])

    def test_an_evaluation_in_another_world_is_said_again(self):
        agent = self.agent()
        agent.greeting = {"best": "accuracy"}
        agent.answers["finished"] = lambda message: last.pop(0)
        last = [world(round=2, fromStep=3, restore=False), {"type": "end"}]
        values = iter([0.25, 0.5])
        train(epochs=1, evaluate="epoch", body=lambda step: step.report(accuracy=next(values)) if step.evaluates else None)
        said = [(m["step"], m.get("value")) for m in agent.received() if m["type"] == "score"]
        self.assertEqual(said, [(3, 0.25), (3, 0.5)])

    def test_the_phase_is_that_of_an_evaluation(self):
        agent = self.agent()
        agent.greeting = {"best": "accuracy"}
        phases = []
        train(body=lambda step: step.evaluates and phases.append(agent.words()["phase"]), evaluate=2)
        self.assertEqual({*phases}, {Phase.EVAL})

    def test_an_agent_with_a_metric_that_is_none(self):
        agent = self.agent()
        agent.greeting = {"best": 7}
        with self.assertRaisesRegex(concertina.AgentError, "metric 7"):
            concertina.join({})
