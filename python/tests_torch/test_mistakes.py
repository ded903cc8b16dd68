"""What is looked for in the variables of the function that loops."""

import os
import unittest
import warnings
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import concertina.torch as elastic
from concertina import mistakes


class Missing(unittest.TestCase):
    def setUp(self):
        self.enterContext(mock.patch.dict(os.environ))
        for name in "CONCERTINA_SOCKET", "RANK", "WORLD_SIZE":
            os.environ.pop(name, None)
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def warned(self, state, **variables):
        """The names of what is warned of."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mistakes.warn(variables, state, "join", stacklevel=2)
        return {str(warning.message).split()[0] for warning in caught}

    def test_what_changes_and_is_not_in_the_state(self):
        schedule = torch.optim.lr_scheduler.StepLR(self.opt, 1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.opt)
        scaler, off = torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu", enabled=False)
        other, frozen = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).requires_grad_(False)
        variables = {
            "net": self.net, "inner": self.net[0], "opt": self.opt, "schedule": schedule, "plateau": plateau,
            "scaler": scaler, "off": off, "other": other, "frozen": frozen, "loss": torch.nn.CrossEntropyLoss(),
            "compiled": torch.compile(self.net, backend="eager"), "around": torch.nn.Sequential(self.net),
            "averaged": torch.optim.swa_utils.AveragedModel(self.net), "number": 3,
        }  # fmt: skip
        found = self.warned({"net": self.net, "opt": self.opt}, **variables)
        self.assertEqual(found, {"schedule", "plateau", "scaler", "other", "averaged"})

    def test_who_loops_is_warned_once(self):
        job = elastic.join({"net": self.net})
        opt = self.opt
        with self.assertWarnsRegex(UserWarning, r"opt is a SGD and not in the state") as caught:
            job.steps([0], global_batch=1, epochs=1)
        self.assertEqual(caught.filename, __file__)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            job.steps([0], global_batch=1, epochs=1)
        self.assertIs(opt, self.opt)

    def test_a_program_that_loops_at_its_top(self):
        # Its variables are the module's, among which Python keeps what it has warned of.
        program = "job = elastic.join({'net': net})\njob.steps([0], global_batch=1, epochs=1)"
        variables = {"elastic": elastic, "net": self.net, "opt": self.opt, "another": self.opt}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            exec(program, variables)
        self.assertEqual([str(warning.message).split()[0] for warning in caught], ["opt", "another"])
        variables["job"]._close()

    def test_a_wrapper_that_exchanges_by_itself(self):
        for step in elastic.join({"net": self.net, "opt": self.opt}).steps([0], global_batch=1, epochs=1):
            with step:
                ddp = DistributedDataParallel(self.net)
                list(step.micro_batches())
        with self.assertRaisesRegex(TypeError, r"state\['net'\] is a DistributedDataParallel"):
            elastic.join({"net": ddp})
        job = elastic.join({"net": self.net, "opt": self.opt})
        with self.assertRaisesRegex(TypeError, "ddp is a DistributedDataParallel around"):
            job.steps([0], global_batch=1, epochs=1)

    def test_a_group_that_the_program_has_made(self):
        job = elastic.join({"net": self.net, "opt": self.opt})
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        with self.assertRaisesRegex(RuntimeError, r"leave dist\.init_process_group\(\) out"):
            for _ in job.steps([0], global_batch=1, epochs=1):
                self.fail("a step is given beside another group")

    def test_a_loader_around_what_it_cannot_read(self):
        class Stream(IterableDataset):
            def __iter__(self):
                return iter([])

        job = elastic.join({"net": self.net, "opt": self.opt})
        self.addCleanup(job._close)
        for data, kind in (DataLoader([0]), "a DataLoader: give its data set"), (Stream(), "a Stream, a stream, which cannot be dealt out"):
            with self.assertRaisesRegex(TypeError, f"data is {kind}"):
                job.steps(elastic.Loader(data), global_batch=1, epochs=1)

    def test_a_loss_that_is_no_tensor(self):
        for step in elastic.join({"net": self.net, "opt": self.opt}).steps([0], global_batch=1, epochs=1):
            with self.assertRaisesRegex(TypeError, "is a float: give the tensor"), step:
                for _ in step.micro_batches():
                    step.backward(self.net(torch.ones(1, 3)).mean().item())
            break

    def test_a_compiled_module_is_kept_as_itself(self):
        job = elastic.join({"net": torch.compile(self.net, backend="eager")})
        self.addCleanup(job._close)
        self.assertIs(job._state["net"], self.net)


if __name__ == "__main__":
    unittest.main()
