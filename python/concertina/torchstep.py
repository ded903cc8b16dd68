"""A step of a training in a torch.distributed process group."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from concertina import samples
from concertina import step as _step
from concertina.tensors import is_sharded

if TYPE_CHECKING:
    from concertina.torch import Job


class Step(_step.Step):
    """One optimizer update as one rank sees it, or an evaluation; see concertina.Step."""

    _job: "Job"
    _piece: samples.MicroBatch | None = None
    _last = False

    @property
    def loss(self) -> torch.Tensor:
        """The mean loss of the whole batch over all ranks, as a number in a tensor: exchanged with the gradients, so
        that it costs nothing. It is there once the loop over micro_batches() has ended, on all ranks."""
        if self._job._gradients.loss is None:
            raise RuntimeError("step.loss is there once the loop over step.micro_batches() has ended")
        return self._job._gradients.loss

    def micro_batches(self) -> Iterator[Any]:
        """This rank's part of the step, in batches of at most micro_batch samples: none, if there are more ranks than
        samples. Can be used once in a step. When it ends the gradients are those of the whole batch."""
        return super().micro_batches()

    def backward(self, loss: torch.Tensor, weight: float | torch.Tensor | None = None) -> None:
        """Adds the gradient of a micro-batch's loss, once for each; the last one exchanges.

        loss: a mean over the micro-batch. weight: over how many things it is a mean, such as tokens that are no
        padding; by default its samples. The gradient is then that of the mean over all of these in the whole batch.
        At weight 0 the loss has to be finite where it is computed along with others (fillers, or a model in shards): a mean over
        nothing is not, so divide by weight.clamp(min=1).
        A DTensor is made whole, the loss and the weight.

        Raises TypeError for a loss that is no tensor, ValueError for a weight that is negative or not finite, for a loss that
        is not finite at weight 0, and for a DTensor that is a mean of means.
        """
        piece, last = self._piece, self._last
        if piece is None:
            raise RuntimeError(
                "step.backward() belongs into the loop over step.micro_batches(), once for each of them: add several losses up"
            )
        if not isinstance(loss, torch.Tensor):
            raise TypeError(f"step.backward(loss): loss is a {type(loss).__name__}: give the tensor, and not its item()")
        if loss.numel() != 1:
            raise ValueError(f"step.backward(loss) of {loss.numel()} numbers: give their mean, and weight=… where some do not count")
        # All processes of the worker make them whole here, in this order: a loss as of loss_parallel().
        if is_sharded(loss):
            _refuse_means(loss)
            loss = loss.full_tensor()
        if is_sharded(weight):
            weight = weight.full_tensor()  # type: ignore[union-attr]
        weight = float(piece.samples if weight is None else weight)
        if not 0 <= weight < math.inf:
            raise ValueError(f"weight={weight}: it says over how many samples, or tokens, the loss is a mean")
        self._piece = None
        if not piece.samples:
            weight = 0.0
        if weight or not piece.samples or self._job._lockstep:  # Ranks wait for each other in the backward pass of what is in shards.
            if not weight:
                self._refuse_poison(loss)
            self._job._gradients.backward(loss, weight, last)
        if last:
            self._job._exchange()

    def _refuse_poison(self, loss: torch.Tensor) -> None:
        """Raises ValueError for a loss whose gradient is not 0 at weight 0, but not a number. This waits for a device, on ranks that have
        less to do than others."""
        found = loss.item()
        # An overflow is what a GradScaler is there for: it finds it, and leaves the step out.
        if math.isnan(found) or (math.isinf(found) and not self._job._scalers):
            raise ValueError(
                f"step.backward(loss) at weight 0 with a loss of {found}: all ranks compute along, so it has to be finite where nothing "
                "counts (all padding, or a filler): divide by weight.clamp(min=1), so that it is 0"
            )

    def _batches(self) -> Iterator[Any]:
        pieces = self._job._used(self._pieces)
        for i, piece in enumerate(pieces):
            batch = self._load(piece)
            self._piece, self._last = piece, i == len(pieces) - 1
            yield batch
        self._piece = None
        if not self._job._gradients.exchanged:
            self._job._wake_scalers()
            self._job._exchange()


def _refuse_means(loss: Any) -> None:
    """Raises ValueError for a mean that each process has over its own part: of parts of several sizes it is not that of all, and PyTorch
    makes a gradient of it that is as many times too large as there are processes."""
    if any(placement.is_partial() and getattr(placement, "reduce_op", "") == "avg" for placement in loss.placements):
        raise ValueError(
            "step.backward(loss) of a DTensor that is a mean over each process's part, Partial(avg): divide the sum, as in "
            "losses.sum() / n, with n as the number of all"
        )
