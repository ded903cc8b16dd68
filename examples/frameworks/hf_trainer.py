"""Hugging Face's Trainer, elastic by one callback."""

import os
import time

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

import points
from concertina.transformers import ElasticCallback, newest


class Points(Dataset):
    """The points, with their numbers."""

    def __len__(self) -> int:
        return points.SAMPLES

    def __getitem__(self, number: int) -> dict:
        return {"x": points.X[number], "labels": points.Y[number], "number": number}


class Net(torch.nn.Module):
    """A network that returns its loss, as models of transformers do."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(points.FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

    def forward(self, x: torch.Tensor, labels: torch.Tensor, number: torch.Tensor) -> dict:
        logits = self.layers(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Shown(Trainer):
    """A Trainer that tells of each step."""

    def training_step(self, model, inputs, *rest):
        begin = time.monotonic()
        loss = super().training_step(model, inputs, *rest)
        points.tell(self.state.global_step + 1, loss, inputs["number"])
        time.sleep(max(0, begin + options.step_seconds - time.monotonic()))
        return loss


options = points.arguments()
torch.manual_seed(0)
args = TrainingArguments(
    output_dir=options.checkpoints,
    num_train_epochs=points.EPOCHS,
    # The same batch for any number of ranks: only then is a step the same samples in every world.
    per_device_train_batch_size=points.GLOBAL_BATCH // int(os.environ.get("WORLD_SIZE", 1)),
    save_strategy="steps",
    save_steps=options.every,
    save_total_limit=2,
    learning_rate=0.01,
    use_cpu=not torch.cuda.is_available(),
    # Without a name it is MPI on processors, where PyTorch has that, and each rank would train alone. Outside
    # of a world the Trainer makes no group, and fails where a backend is named.
    ddp_backend=("nccl" if torch.cuda.is_available() else "gloo") if "WORLD_SIZE" in os.environ else None,
    remove_unused_columns=False,
    report_to="none",
    disable_tqdm=True,
)
trainer = Shown(Net(), args, train_dataset=Points(), callbacks=[ElasticCallback()])
trainer.train(resume_from_checkpoint=newest(args.output_dir))
