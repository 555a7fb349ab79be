"""Batch-norm statistics of a meta-batch, independent of how its episodes are spread over processes."""

from __future__ import annotations

import torch
from torch import nn

from tapnet.hardware import all_reduce_sum


class MeanOfStatistics:
    """The mean of the running statistics over the episodes of a meta-batch, each of which starts from the same ones.

    So the running average moves once per step, by the mean over the meta-batch, whether its episodes run one after the
    other or on several devices.
    """

    def __init__(self, module: nn.Module) -> None:
        self._buffers = list(module.buffers())
        self._start = [buffer.clone() for buffer in self._buffers]
        self._place = torch.device("cpu")  # of the sums; those of a GPU stay there, so that the host does not wait
        if self._buffers and self._buffers[0].device.type == "cuda":
            self._place = self._buffers[0].device
        self._sum = torch.zeros(sum(map(torch.numel, self._buffers)), dtype=torch.float64, device=self._place)

    def after_episode(self) -> None:
        """Add the statistics after an episode to the sum, and reset them."""
        if self._buffers:
            self._sum += torch.cat([buffer.reshape(-1).to(self._place, torch.float64) for buffer in self._buffers])
        for buffer, start in zip(self._buffers, self._start, strict=True):
            buffer.copy_(start)

    def keep(self, episodes: int) -> None:
        """Set the statistics to their mean over the episodes of all processes."""
        if not self._buffers:
            return
        means = (all_reduce_sum(self._sum) / episodes).split([buffer.numel() for buffer in self._buffers])
        for buffer, mean in zip(self._buffers, means, strict=True):
            buffer.copy_(mean.view_as(buffer))
