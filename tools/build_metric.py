r"""Build the metric of the networks for photographs: a linear layer over the features of EfficientNet-Lite.

    python tools/build_metric.py efficientnet-lite0 cub:train,val flowers:train,val cifar:train,val \
        mini:train grocery:train --out metric.safetensors

Each argument names a set and the splits from whose classes the metric is learned. The sets are those that
tools/split_photos.py sorts (with --halves) and `tapnet data prepare folder --fit crop --size SIDE` packs, SIDE
being 224 for efficientnet-lite0 and 260 for efficientnet-lite2. The result is a checkpoint without references: a
`--network` for the heads that need none. See `metric` for the closed form and `trained` for what follows it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from photo_features import POWER, square_roots
from torch import Tensor
from torch.nn import functional as F

from tapnet.backbones import METRIC, PRETRAINED, ImageShape
from tapnet.checkpoint import Checkpoint, Header, Lineage
from tapnet.data import ImageSet, load_dataset
from tapnet.data.preprocessing import Preprocessing
from tapnet.recipe import load_recipe

SHRINKAGE, BETWEEN_SHRINKAGE, SHOT = 1.0, 0.5, 5  # chosen on validation classes, as is the share
PLAIN_SHARE = 0.4  # of the features without power and metric
WAY, QUERY, EPISODES, RATE = 12, 6, 240, 3e-3  # of the training that follows; the rate is relative to the weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backbone", choices=[name for name in PRETRAINED if name != "hf"])
    parser.add_argument("datasets", nargs="+", metavar="SET:SPLIT[,SPLIT]")
    parser.add_argument("--root", help="folder of the prepared datasets")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    domains, fingerprints = [], {}
    for argument in args.datasets:
        name, _, splits = argument.partition(":")
        sets = [load_dataset(name, split, args.root) for split in (splits or "train").split(",")]
        fingerprints |= {f"{name} {images.split}": images.fingerprint for images in sets}
        domains.append(features_and_labels(args.backbone, sets))
        shape = sets[0].image_shape
        print(f"{name}: {sum(map(len, sets))} images, {sum(len(images.names) for images in sets)} classes")
    pairs = [covariances(features, labels) for features, labels in domains]
    within, between = (torch.stack(each).mean(dim=0) for each in zip(*pairs, strict=True))
    weight = trained(metric(within, between).float(), domains).half()
    source = f"built by tools/build_metric.py from {' '.join(args.datasets)}"
    checkpoint(args.backbone, shape, weight, fingerprints, source).write(args.out)
    print(f"{args.out}: {args.out.stat().st_size:,} bytes")


def checkpoint(
    backbone: str, shape: ImageShape, weight: Tensor, fingerprints: dict[str, str], source: str
) -> Checkpoint:
    """Return the network with this metric, fitted by logistic regression, for square crops of photographs."""
    options = f"{{metric_dim: {len(weight)}, power: {POWER}, plain_share: {PLAIN_SHARE}}}"
    changes = [f"backbone={{name: {backbone}, options: {options}}}", "method={name: logistic}"]
    channels, height, width = shape
    header = Header(
        load_recipe("photos", changes),
        shape,
        episode=0,
        data=fingerprints,
        preprocessing=Preprocessing(height, width, channels, fit="crop").as_dict(),
        lineage=Lineage(source=source),
    )
    return Checkpoint(header, {METRIC: weight})


def features_and_labels(name: str, sets: list[ImageSet]) -> tuple[Tensor, Tensor]:
    """Return the features (n, dim) of every image, scaled to length 1, and a number for the class of each."""
    features, labels, seen = [], [], 0
    for images in sets:
        features.append(square_roots(name, images))
        labels.append(torch.from_numpy(images.labels) + seen)
        seen += len(images.names)
    return F.normalize(torch.cat(features).double(), dim=1), torch.cat(labels)


def covariances(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the covariance within classes and that of the class means, less what the former adds to it."""
    classes = labels.unique()
    means = torch.stack([features[labels == each].mean(dim=0) for each in classes])
    residuals = features - means[torch.searchsorted(classes, labels)]
    within = residuals.T @ residuals / (len(features) - len(classes))
    centred = means - means.mean(dim=0)
    between = centred.T @ centred / (len(classes) - 1) - within * len(classes) / len(features)
    return within, between


def metric(within: Tensor, between: Tensor) -> Tensor:
    r"""Return the matrix (dim, dim) after which dot products are scores of probabilistic discriminant analysis.

    With $t = \operatorname{tr} S_w / d$: whiten by $A = (S_w / t + s I)^{-1/2}$; take the eigenvectors V and
    eigenvalues $\psi$ of $A (S_b / t + b \bar\beta I) A$, where $\bar\beta$ is the mean of the diagonal of $S_b / t$;
    weigh each direction by $\sqrt g$, $g = \frac{n\psi}{n\psi + 1} / (1 + \frac{\psi}{n\psi + 1})$, the weight that it
    has in the likelihood of a query given n examples of a class (Prince and Elder, ICCV 2007). The matrix is
    $V \operatorname{diag}(\sqrt g) V^\top A$.
    """
    identity = torch.eye(len(within), dtype=within.dtype)
    unit = within.diagonal().mean()
    values, vectors = torch.linalg.eigh(within / unit + SHRINKAGE * identity)
    whitening = vectors * values.rsqrt() @ vectors.T
    scaled = between / unit
    shrunk = scaled + BETWEEN_SHRINKAGE * scaled.diagonal().mean() * identity
    ratios, directions = torch.linalg.eigh(whitening @ shrunk @ whitening)
    ratios = ratios.clamp_min(1e-9)
    weights = SHOT * ratios / (SHOT * ratios + 1) / (1 + ratios / (SHOT * ratios + 1))
    return directions * weights.sqrt() @ directions.T @ whitening


def trained(weight: Tensor, domains: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the metric after some episodes of prototypical networks with cosines, each within one set, in turn.

    The features are those of the backbone: plain ones (features squared, as `POWER` is a half) beside the metric's.
    """
    generator = torch.Generator().manual_seed(0)
    learned, log_scale = weight.clone().requires_grad_(), torch.tensor(3.4, requires_grad=True)
    rate = RATE * weight.abs().mean().item()
    optimizer = torch.optim.Adam([{"params": [learned], "lr": rate}, {"params": [log_scale], "lr": 1e-2}])
    answers = torch.arange(WAY).repeat_interleave(QUERY)
    for episode in range(EPISODES):
        features, labels = domains[episode % len(domains)]
        shot = (1, 3)[episode // len(domains) % 2]
        rows = episode_rows(labels, shot, generator)
        roots = features[rows].float()  # (way, shot + query, dim)
        plain, mapped = (F.normalize(each, dim=-1) for each in (roots.square(), roots @ learned.T))
        both = torch.cat([PLAIN_SHARE**0.5 * plain, (1 - PLAIN_SHARE) ** 0.5 * mapped], dim=-1)
        prototypes = F.normalize(both[:, :shot].mean(dim=1), dim=-1)
        loss = F.cross_entropy(log_scale.exp() * both[:, shot:].flatten(0, 1) @ prototypes.T, answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return learned.detach()


def episode_rows(labels: Tensor, shot: int, generator: torch.Generator) -> Tensor:
    """Return rows (way, shot + query) of images of random classes."""
    classes = labels.unique()
    chosen = classes[torch.randperm(len(classes), generator=generator)[:WAY]]
    rows = [(labels == each).nonzero()[:, 0] for each in chosen]
    return torch.stack([each[torch.randperm(len(each), generator=generator)[: shot + QUERY]] for each in rows])


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
