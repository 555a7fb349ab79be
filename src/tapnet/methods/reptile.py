"""On First-Order Meta-Learning Algorithms. Alex Nichol, Joshua Achiam, John Schulman. arXiv 2018."""

from __future__ import annotations

from typing import Any

import torch

from tapnet.backbones import Backbone
from tapnet.data.batches import EpisodeImages
from tapnet.errors import UserError
from tapnet.methods.base import EpisodeLoss, cross_entropy
from tapnet.methods.maml import MAML


class Reptile(MAML):
    r"""A network and a linear layer that move toward the weights which gradient descent finds for each task.

    $\phi \leftarrow \phi - \varepsilon\,(\phi - \tilde\phi)$, where $\tilde\phi$ are the weights after `steps` of
    gradient descent on a task, each on `batch` of its labeled images, support and query alike. $\phi - \tilde\phi$ is
    the gradient of `loss`, so the optimizer of training makes the step: SGD with a rate of $\varepsilon$ is the
    published one. The authors descend with Adam, without momentum, in place of plain gradient descent.

    At test it adapts as MAML does, by `test_steps` on the support set. All weights adapt, those of batch normalization
    too; its statistics are those of MAML, as are the other `options`.
    """

    def __init__(
        self, backbone: Backbone, way: int, steps: int = 5, rate: float = 0.1, batch: int = 10, **options: Any
    ) -> None:
        super().__init__(backbone, way, steps, rate, first_order=True, **options)
        if batch < 2:
            raise UserError(f"Reptile needs `batch` to be at least 2, got {batch}.")
        self.batch = batch

    def loss(self, episode: EpisodeImages) -> EpisodeLoss:
        """Return the queries' cross-entropy after adaptation; its gradient is φ - φ̃."""
        labels = torch.cat([episode.support_labels, episode.query_labels])
        self.check_episode(episode.images, labels, episode.way)
        start = dict(self.named_parameters())
        weights = {name: parameter.detach().requires_grad_() for name, parameter in start.items()}
        for _ in range(self.steps):
            drawn = torch.randperm(len(labels), device=labels.device)[: self.batch]
            weights = self.step(weights, episode.images[drawn], labels[drawn], episode.way)
        with torch.no_grad():
            logits = self.run(episode.query_images, weights)
        meta_gradient = {name: (start[name] - weights[name]).detach() for name in start}
        carrier = torch.stack([(start[name] * meta_gradient[name]).sum() for name in start]).sum()
        return EpisodeLoss(cross_entropy(logits, episode.query_labels) + carrier - carrier.detach(), logits)

    def adapted_names(self) -> list[str]:
        return [name for name, _ in self.named_parameters()]
