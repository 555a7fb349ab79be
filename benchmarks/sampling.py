"""What drawing an episode costs beside the training step that uses it: `python benchmarks/sampling.py [--root DIR]`.

20-way 5-shot 8-query from packed miniImageNet, and a step of TapNet with Conv4 at 84×84 in float32; the two take turns.
"""

from __future__ import annotations

import argparse
from itertools import count

import torch
from pairs import compared

from tapnet.backbones import make_backbone
from tapnet.data import load_dataset
from tapnet.data.batches import EpisodeImages, episode_images
from tapnet.methods import TapNet

WAY, SHOT, QUERY = 20, 5, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="folder of the prepared datasets")
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    images = load_dataset("mini-imagenet", "train", args.root)
    sampler, numbers = images.episodes(WAY, SHOT, QUERY), count()
    method = TapNet(make_backbone("conv4", images.image_shape), num_references=WAY).train()
    optimizer = torch.optim.Adam(method.parameters())

    def draw() -> EpisodeImages:
        return episode_images(images, sampler[next(numbers)])

    def step() -> None:
        episode = draw()
        optimizer.zero_grad()
        logits = method(episode.support_images, episode.support_labels, episode.query_images)
        torch.nn.functional.cross_entropy(logits, episode.query_labels).backward()
        optimizer.step()

    drawing, training, ratio = compared(draw, step, args.pairs)
    print(f"{WAY}-way {SHOT}-shot {QUERY}-query, conv4 84×84, float32, median of {args.pairs} pairs")
    print(f"  drawing an episode {1000 * drawing:9.1f} ms")
    print(f"  a training step    {1000 * training:9.1f} ms")
    print(f"  ratio              {ratio:9.4f}")


if __name__ == "__main__":
    main()
