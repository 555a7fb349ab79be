"""Batch-norm statistics of a meta-batch: the same however its episodes are spread over processes."""

from __future__ import annotations

import torch
from torch import nn

from tapnet.distributed import all_reduce_sum


class MeanOfStatistics:
    """Every episode of a meta-batch updates the running statistics from the same start; their mean is kept.

    So the running average moves once a step, by the mean over the meta-batch, whether its episodes follow one another
    on one device or run on several.
    """

    def __init__(self, module: nn.Module) -> None:
        self._buffers = list(module.buffers())
        self._start = [buffer.clone() for buffer in self._buffers]
        self._place = torch.device("cpu")  # of the sums; those of a GPU stay there, so that nobody waits for them
        if self._buffers and self._buffers[0].device.type == "cuda":
            self._place = self._buffers[0].device
        self._sum = torch.zeros(sum(map(torch.numel, self._buffers)), dtype=torch.float64, device=self._place)

    def after_episode(self) -> None:
        """Take note of what the episode made of the statistics, and go back to the start."""
        if self._buffers:
            self._sum += torch.cat([buffer.reshape(-1).to(self._place, torch.float64) for buffer in self._buffers])
        for buffer, start in zip(self._buffers, self._start, strict=True):
            buffer.copy_(start)

    def keep(self, episodes: int) -> None:
        """The mean over the episodes of all processes."""
        if not self._buffers:
            return
        means = (all_reduce_sum(self._sum) / episodes).split([buffer.numel() for buffer in self._buffers])
        for buffer, mean in zip(self._buffers, means, strict=True):
            buffer.copy_(mean.view_as(buffer))
