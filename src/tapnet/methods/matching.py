"""Matching Networks for One Shot Learning.

Oriol Vinyals, Charles Blundell, Timothy Lillicrap, Koray Kavukcuoglu, Daan Wierstra. NeurIPS 2016.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tapnet.backbones import Backbone
from tapnet.errors import UserError
from tapnet.functional import widened
from tapnet.methods.base import FunctionHead, Method, check_positive


class MatchingNetwork(Method):
    r"""Attention over the labeled images is the classifier: $p(y|x) = \sum_i a_i y_i$, $a = softmax(s \cos(f, g_i))$.

    The paper has no `scale` s, that is s = 1. Then non-negative features cannot bring the loss below 0.905 (5-way) or
    2.08 (20-way), so our default is 10. With `full_context`, a bidirectional LSTM reads the support set, whose order
    then matters, and each query attends to it in `steps` steps of a second LSTM.
    """

    def __init__(self, backbone: Backbone, scale: float = 10.0, full_context: bool = False, steps: int = 3) -> None:
        super().__init__(backbone)
        check_positive("scale", scale)
        if steps < 1:
            raise UserError(f"`steps` needs to be at least 1, got {steps}.")
        self.scale, dim = scale, backbone.dim
        self.writer = nn.LSTM(dim, dim, batch_first=True, bidirectional=True) if full_context else None
        self.reader = ContextReader(dim, steps) if full_context else None

    def adapt(self, support: Tensor, labels: Tensor, way: int) -> FunctionHead:
        others = self.members(support, labels, way).mT.unsqueeze(-3) == 0  # (..., 1, way, n)
        context = widened(self.written(support))

        def read(query: Tensor) -> Tensor:
            features: Tensor = query if self.reader is None else self.reader(query, context)
            return features.to(context.dtype)

        def logits(query: Tensor) -> Tensor:
            queries = read(query)
            with torch.autocast(query.device.type, enabled=False):
                cosines = F.normalize(queries, dim=-1) @ F.normalize(context, dim=-1).mT
            logs = (self.scale * cosines).log_softmax(dim=-1).unsqueeze(-2)  # log a_i, (..., query, 1, n)
            return logs.masked_fill(others, -torch.inf).logsumexp(dim=-1)

        return FunctionHead(logits, read)

    def written(self, support: Tensor) -> Tensor:
        """Return each support feature plus what the LSTM over the support set adds to it."""
        if self.writer is None:
            return support
        both, _ = self.writer(support.reshape(-1, *support.shape[-2:]))  # (episodes, n, 2 · dim)
        forwards, backwards = both.chunk(2, dim=-1)
        return support + (forwards + backwards).reshape(support.shape)


class ContextReader(nn.Module):
    r"""A query after `steps` of an LSTM that attends to the support set.

    $\hat h, c = LSTM([f, r], h, c)$, $h = \hat h + f$, $r = \sum_i softmax_i(h \cdot g_i)\, g_i$; r starts as the mean
    of g, and h and c start at zero.
    """

    def __init__(self, dim: int, steps: int) -> None:
        super().__init__()
        self.cell, self.steps = nn.LSTMCell(2 * dim, dim), steps

    def forward(self, query: Tensor, support: Tensor) -> Tensor:
        query = query.to(support.dtype)
        read = support.mean(dim=-2, keepdim=True).expand_as(query)
        hidden = cell = torch.zeros_like(query)
        for _ in range(self.steps):
            inputs = torch.cat([query, read], dim=-1)
            states = self.cell(inputs.flatten(0, -2), (hidden.flatten(0, -2), cell.flatten(0, -2)))
            hidden, cell = (state.view(query.shape) for state in states)
            hidden = hidden + query
            read = (hidden @ support.mT).softmax(dim=-1) @ support
        return hidden
