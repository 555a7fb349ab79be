"""An exponential moving average of the weights, which may generalize better than the weights of any one step."""

from __future__ import annotations

from typing import cast

from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tapnet.methods import Method


class WeightAverage:
    r"""The average $\bar w_1 = w_1$, $\bar w_t = d \bar w_{t-1} + (1 - d) w_t$ over the weights after each step.

    Running statistics of batch normalization are averaged, too; integers, such as their counts, are copied.
    """

    def __init__(self, method: Method, decay: float) -> None:
        self._model = AveragedModel(method, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
        self._method = method

    @property
    def method(self) -> Method:
        """The method with averaged weights."""
        return cast(Method, self._model.module)

    def update(self) -> None:
        """Include the weights of the method as they are now."""
        self._model.update_parameters(self._method)
        for average, buffer in zip(self.method.buffers(), self._method.buffers(), strict=True):
            if not buffer.is_floating_point():
                average.copy_(buffer)

    def tensors(self) -> dict[str, Tensor]:
        """Return the averaged weights, for `restore`; empty before the first update."""
        return self.method.state_dict() if self._model.n_averaged else {}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue from an average that `tensors` returned."""
        if tensors:
            self.method.load_state_dict(tensors)
            self._model.n_averaged.fill_(1)  # only the first update is special
