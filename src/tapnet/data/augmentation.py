"""Augmentation of training images; none by default, as in the paper.

Each function takes the images of an episode (n, channels, height, width) and a generator. `rotate` and `dihedral` treat
all images of an episode alike, the others each image on its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from tapnet.errors import UserError

Augmentation = Callable[[Tensor, torch.Generator], Tensor]


def rotate(images: Tensor, generator: torch.Generator) -> Tensor:
    """Rotate the whole episode by 0, 90, 180 or 270 degrees, the same for all.

    An alternative to rotations as classes of their own (with `rotations: 1` in `data.options`): all characters of an
    episode then have the same orientation, as in a task of upright drawings, and are harder to tell apart.
    """
    if images.shape[-1] != images.shape[-2]:
        shape = tuple(images.shape[-2:])
        raise UserError(f"Only square images can be rotated, got {shape}: choose another augmentation.")
    rotations = int(torch.randint(4, (1,), generator=generator))
    return images.rot90(rotations, (-2, -1)).contiguous(memory_format=torch.channels_last)


def dihedral(images: Tensor, generator: torch.Generator) -> Tensor:
    """Rotate the whole episode, then mirror all or none of it: one of eight orientations for all."""
    rotated = rotate(images, generator)
    mirrored = bool(torch.rand((), generator=generator) < 0.5)
    return rotated.flip(-1).contiguous(memory_format=torch.channels_last) if mirrored else rotated


def flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image left to right with probability one half."""
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(mirrored.to(images.device)[:, None, None, None], images.flip(-1), images)


def crop(images: Tensor, generator: torch.Generator) -> Tensor:
    """Flip, then shift each image by up to a tenth of its size; the new border is black."""
    limit = 0.2  # of the half-size, in which affine grids measure
    shift = _uniform((len(images), 2), -limit, limit, generator)
    identity = torch.eye(2).expand(len(images), 2, 2)
    return _warped(flip(images, generator), torch.cat([identity, shift[..., None]], dim=-1))


def window(images: Tensor, generator: torch.Generator) -> Tensor:
    """Crop a window of five sevenths of the size (60 of 84) at a random place of each image, then flip.

    This halves the work, for methods that take smaller images (`classifier`).
    """
    height, width = (round(size * 5 / 7) for size in images.shape[-2:])
    rows, columns = (
        torch.randint(size - part + 1, (len(images),), generator=generator).tolist()
        for size, part in zip(images.shape[-2:], (height, width), strict=True)
    )
    windows = [
        image[:, row : row + height, column : column + width]
        for image, row, column in zip(images, rows, columns, strict=True)
    ]
    return flip(torch.stack(windows).contiguous(memory_format=torch.channels_last), generator)


def resized_crop(images: Tensor, generator: torch.Generator, size: int | None = None) -> Tensor:
    """Crop a random window of 35% to 100% of the area of each image, 3:4 to 4:3, resize it to `size`, then flip.

    For methods that take smaller images (`classifier`); `training.image_sizes` chooses the size.
    """
    count, height = len(images), size or images.shape[-1]
    area = _uniform((count,), 0.35, 1.0, generator)
    ratio = _uniform((count,), math.log(3 / 4), math.log(4 / 3), generator).exp()
    extent = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], dim=-1).clamp(max=1)  # of width and height
    center = _uniform((count, 2), -1, 1, generator) * (1 - extent)
    maps = torch.cat([torch.diag_embed(extent), center[..., None]], dim=-1)
    return flip(_warped(images, maps, size=(height, height)), generator)


def _uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator)


def _warped(images: Tensor, maps: Tensor, size: tuple[int, int] | None = None) -> Tensor:
    grid = F.affine_grid(maps.to(images), [*images.shape[:2], *(size or images.shape[2:])], align_corners=False)
    return F.grid_sample(images, grid, align_corners=False).contiguous(memory_format=torch.channels_last)


AUGMENTATIONS: dict[str, Augmentation] = {
    "none": lambda images, _: images,
    **{augment.__name__: augment for augment in (rotate, dihedral, flip, crop, window, resized_crop)},
}
