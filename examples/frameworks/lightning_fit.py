"""Lightning's Trainer, elastic by one callback."""

import os
import time

import torch
from lightning import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

import points
from concertina.batches import Batches
from concertina.lightning import ElasticCallback


class Net(LightningModule):
    """A small network."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(points.FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

    def train_dataloader(self) -> DataLoader:
        data = TensorDataset(torch.arange(points.SAMPLES), torch.from_numpy(points.X), torch.from_numpy(points.Y))
        # The order belongs to the job: it goes on where it was, for any number of ranks.
        return DataLoader(data, batch_sampler=Batches(len(data), points.GLOBAL_BATCH, done=self.trainer.global_step))

    def training_step(self, batch, _):
        begin = time.monotonic()
        numbers, x, y = batch
        loss = torch.nn.functional.cross_entropy(self.layers(x), y)
        points.tell(self.trainer.global_step + 1, loss, numbers)
        time.sleep(max(0, begin + options.step_seconds - time.monotonic()))
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


options = points.arguments()
torch.manual_seed(0)
elastic = ElasticCallback(options.checkpoints, every=options.every)
workers = int(os.environ.get("WORLD_SIZE", 1)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
trainer = Trainer(
    max_epochs=points.EPOCHS,
    accelerator="auto" if torch.cuda.is_available() else "cpu",
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
    num_nodes=workers,
    strategy="ddp" if "WORLD_SIZE" in os.environ else "auto",
    use_distributed_sampler=False,
    callbacks=[elastic],
    enable_checkpointing=False,
    enable_progress_bar=False,
    logger=False,
)
trainer.fit(Net(), ckpt_path=elastic.newest())
