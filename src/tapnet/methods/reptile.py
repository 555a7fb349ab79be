"""On First-Order Meta-Learning Algorithms. Alex Nichol, Joshua Achiam, John Schulman. arXiv 2018."""

from __future__ import annotations

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

    At test it adapts as MAML does, by `test_steps` of `test_rate` on the support set. All weights adapt, those of batch
    normalization too; its statistics are those of MAML.
    """

    def __init__(
        self,
        backbone: Backbone,
        way: int,
        steps: int = 5,
        rate: float = 0.1,
        batch: int = 10,
        test_steps: int | None = None,
        test_rate: float | None = None,
        batch_statistics: bool = False,
        zero_classifier: bool = False,
    ) -> None:
        super().__init__(backbone, way, steps, rate, test_steps, test_rate, True, batch_statistics, zero_classifier)
        if batch < 2:
            raise UserError(f"Reptile needs `batch` to be at least 2, got {batch}.")
        self.batch = batch

    def loss(self, episode: EpisodeImages) -> EpisodeLoss:
        """Return the queries' cross-entropy after adaptation; its gradient is the way back from there, φ - φ̃."""
        labels = torch.cat([episode.support_labels, episode.query_labels])
        self.check_episode(episode.images, labels, episode.way)
        start = dict(self.named_parameters())
        weights = {name: parameter.detach().requires_grad_() for name, parameter in start.items()}
        for _ in range(self.steps):
            drawn = torch.randperm(len(labels), device=labels.device)[: self.batch]
            weights = self.step(weights, episode.images[drawn], labels[drawn], episode.way, self.rate)
        with torch.no_grad():
            logits = self.run(episode.query_images, weights)
        moved = [(start[name] * (start[name] - weights[name]).detach()).sum() for name in start]
        meta_gradient = torch.stack(moved).sum()
        return EpisodeLoss(cross_entropy(logits, episode.query_labels) + meta_gradient - meta_gradient.detach(), logits)

    def adapted_names(self) -> list[str]:
        return [name for name, _ in self.named_parameters()]
