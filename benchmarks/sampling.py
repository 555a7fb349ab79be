"""What drawing an episode costs beside the training step that uses it: `python benchmarks/sampling.py [--root DIR]`.

20-way 5-shot 8-query from packed miniImageNet, and a step of TapNet with Conv4 at 84×84 in float32; the two take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from tapnet.backbones import make_backbone
from tapnet.datasets import ImageSet, load_dataset
from tapnet.episodes import EpisodeSampler
from tapnet.methods import TapNet

WAY, SHOT, QUERY = 20, 5, 8


def seconds(action: Callable[[int], object], index: int) -> float:
    start = time.perf_counter()
    action(index)
    return time.perf_counter() - start


def draw(images: ImageSet, sampler: EpisodeSampler, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    episode = sampler[index]
    return torch.from_numpy(images.gather(episode.support)), torch.from_numpy(images.gather(episode.query))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="folder of the prepared datasets")
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    images = load_dataset("mini-imagenet", "train", args.root)
    sampler = EpisodeSampler(images.labels, WAY, SHOT, QUERY)
    method = TapNet(make_backbone("conv4", images.image_shape), ways=WAY).train()
    optimiser = torch.optim.Adam(method.parameters())
    labels = torch.arange(WAY).repeat_interleave(SHOT), torch.arange(WAY).repeat_interleave(QUERY)

    def step(index: int) -> None:
        support, query = (part.flatten(0, 1).permute(0, 3, 1, 2).float() / 255 for part in draw(images, sampler, index))
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(method(support, labels[0], query), labels[1]).backward()
        optimiser.step()

    rounds = [
        (seconds(lambda index: draw(images, sampler, index), 1000 + index), seconds(step, index))
        for index in range(args.steps + 1)
    ][1:]
    drawing, training = (1000 * statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"{WAY}-way {SHOT}-shot {QUERY}-query, conv4 84×84, float32, median of {args.steps} rounds")
    print(f"  drawing an episode {drawing:9.1f} ms")
    print(f"  a training step    {training:9.1f} ms")
    print(f"  ratio              {statistics.median(a / b for a, b in rounds):9.4f}")


if __name__ == "__main__":
    main()
