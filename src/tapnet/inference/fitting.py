"""Fit a task to labeled images, and change it: classes and examples are added and removed without fitting anew.

A `Task` is a value: these functions return another one and leave theirs as it was, so threads may share a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tapnet.errors import UserError
from tapnet.inference.content import PHOTOGRAPHS, NetworkChoice, are_color_photographs, choose_network
from tapnet.inference.images import (
    Example,
    ImageInput,
    ImagesByClass,
    OnRead,
    OnUnreadable,
    check_images_by_class,
    image_sha256,
    name_of,
    read_labeled,
)
from tapnet.inference.model_selection import (
    MethodChoice,
    choose_method,
    choose_temperature,
    leave_one_out,
    resolve_method,
)
from tapnet.inference.networks import EmbeddingModel, load_network
from tapnet.inference.scoring import Confusion
from tapnet.inference.task import LABEL_KINDS, Examples, Task, check_names_differ, network_of

Progress = Callable[[int, int], None]  # called with what is done, and of how much


def fit(
    images: ImagesByClass,
    network: str | None = None,
    method: str | None = None,
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
    on_unreadable: OnUnreadable | None = None,
    on_read: OnRead | None = None,
) -> Task:
    """Return the task of telling these classes apart, fitted to their images.

    - `images`: for each class its images, as paths, bytes of image files, PIL images or arrays.
    - `network`: a bundled one, a checkpoint, the folder of a run or "hf:MODEL"; `None` chooses by content.
    - `method`: `None` or "auto" is the one that `propose_method` names; else that of the network, such as "tapnet" with
      references as in the paper, or one without parameters, such as "centroid".
    - `options`: of the method's adaptation, such as `{"projection_dim": 100}`.
    - `on_unreadable`: called with an image that cannot be read and the reason; the image is left out. Without it, raise
      UserError. `on_read` is called after each image, for a progress bar.

    Raise UserError if the classes cannot be told apart: fewer than two, one without a readable image, one image in two
    classes, or more classes than the method takes.
    """
    classes = _sorted(images)
    if len(classes) < 2:
        raise UserError(f"A classifier needs at least 2 classes, got {len(classes)}: {', '.join(classes) or 'none'}.")
    model = load_network(network or propose_network(classes).name, device)
    name, options = resolve_method(model, method, options)
    model.method_named(name, options, len(classes))  # refuse what cannot be fitted before reading any image
    examples = _read_examples(classes, model, on_unreadable, on_read)
    return fit_task(list(classes), examples, model, name, options)


def fit_task(
    classes: Sequence[str],
    examples: Examples,
    model: EmbeddingModel,
    method: str | None = None,
    options: Mapping[str, Any] | None = None,
    label_kind: str = "str",
) -> Task:
    """Return the task of these examples, whose labels count the classes; `resolve_method` chooses the method."""
    if len(classes) < 2:
        raise UserError(f"A classifier needs at least 2 classes, got {len(classes)} class.")
    name, options = resolve_method(model, method, options)
    model.method_named(name, options, len(classes))
    if options:  # the head tells whether they suit the examples
        model.adapt(examples.features, examples.labels, name, options).linear()
    temperature = choose_temperature(examples, model, name, options)
    names = name, options, model.name, model.sha256, label_kind, model.precision
    return Task(tuple(classes), examples, temperature, *names)


def propose_network(images: ImagesByClass) -> NetworkChoice:
    """Return the network that `fit` chooses for these images, and why."""
    return choose_network(list(chain.from_iterable(_sorted(images).values())))


def network_warning(images: ImagesByClass, network: str, device: str = "cpu") -> str | None:
    """Return a sentence if these are photographs in color and the network is one for drawings, else `None`."""
    preprocessing = load_network(network, device).preprocessing
    for_drawings = preprocessing is not None and preprocessing.ink is not None
    if not for_drawings or not are_color_photographs(list(chain.from_iterable(images.values()))):
        return None
    return (
        f"These look like photographs, and {network} is a network for drawings: {PHOTOGRAPHS} is one for photographs."
    )


def propose_method(task: Task, network: str | None = None, device: str = "cpu") -> MethodChoice:
    """Return the method that `fit` chooses with the network of a task where none is named, and why."""
    return choose_method(network_of(task, network, device))


def add(
    task: Task,
    images: ImagesByClass,
    network: str | None = None,
    device: str = "cpu",
    on_unreadable: OnUnreadable | None = None,
    on_read: OnRead | None = None,
) -> Task:
    """Return the task with further images, of its classes or of new ones.

    An image that its class has already is left out. Raise UserError if another class has it, or as `fit` does.
    """
    model, classes = network_of(task, network, device), _sorted(images)
    return with_examples(task, list(classes), _read_examples(classes, model, on_unreadable, on_read), model)


def with_examples(task: Task, names: Sequence[str], more: Examples, model: EmbeddingModel) -> Task:
    """Return the task as `add` does, `more.labels` counting `names`; new names become classes, in order."""
    task.check_network(model)
    classes = tuple(sorted({*task.classes, *names}, key=LABEL_KINDS[task.label_kind]))
    check_names_differ(classes)
    labels = np.array([classes.index(names[label]) for label in more.labels], dtype=np.int64)
    known = np.array([classes.index(task.classes[label]) for label in task.examples.labels], dtype=np.int64)
    owner = dict(zip(task.examples.hashes, known, strict=True))
    for digest, label in zip(more.hashes, labels, strict=True):
        if owner.get(digest, label) != label:
            raise UserError(
                f"An image given for {classes[label]!r} is already an example of {classes[owner[digest]]!r} (sha-256 "
                f"{digest[:12]}…): remove it there first."
            )
    fresh = np.array([digest not in owner for digest in more.hashes], dtype=bool)
    examples = replace(task.examples, labels=known).joined(replace(more, labels=labels).take(fresh))
    return fit_task(classes, examples, model, task.method, task.options, task.label_kind)


def remove(
    task: Task,
    classes: Iterable[str] = (),
    images: Iterable[ImageInput] = (),
    network: str | None = None,
    device: str = "cpu",
) -> Task:
    """Return the task without these classes and without these examples, which are recognized by their content.

    A class whose last example is removed goes, too. Raise UserError if fewer than two classes would be left.
    """
    gone, digests = set(classes), {image_sha256(image): name_of(image) for image in images}
    if missing := sorted(gone - set(task.classes)):
        raise UserError(f"The task has no class {missing[0]!r}; it has {', '.join(task.classes)}.")
    if strange := [name for digest, name in digests.items() if digest not in task.examples.hashes]:
        raise UserError(f"{strange[0]} is not an example of the task.")
    labeled = zip(task.examples.labels, task.examples.hashes, strict=True)
    kept = [task.classes[label] not in gone and digest not in digests for label, digest in labeled]
    left = task.examples.take(np.array(kept, dtype=bool))
    stay, labels = np.unique(left.labels, return_inverse=True)
    if len(stay) < 2:
        raise UserError(f"A task needs at least 2 classes, this would leave {len(stay)}: delete the file instead.")
    model, names = network_of(task, network, device), [task.classes[label] for label in stay]
    examples = replace(left, labels=labels.astype(np.int64))
    return fit_task(names, examples, model, task.method, task.options, task.label_kind)


def estimate_accuracy(
    task: Task, network: str | None = None, device: str = "cpu", progress: Progress | None = None
) -> Confusion | None:
    """Return the accuracy on examples that are left out, as `leave_one_out` does with the network of the task."""
    return leave_one_out(task, network_of(task, network, device), progress)


def compare_methods(
    task: Task, network: str | None = None, device: str = "cpu", progress: Progress | None = None
) -> dict[str, Confusion]:
    """Return what `estimate_accuracy` returns for every method that the network offers, that of the task first.

    It has the name `Task.method_label`. Empty if a class has one image only. `progress` counts rounds of all methods.
    """
    model, estimates = network_of(task, network, device), dict[str, Confusion]()
    others = [name for name in model.offered_methods(len(task.classes)) if name != task.method_label]

    def advance(done: int, rounds: int) -> None:
        if progress:
            progress(len(estimates) * rounds + done, (1 + len(others)) * rounds)

    for name in (None, *others):
        if (estimate := leave_one_out(task, model, advance, name)) is None:
            return {}
        estimates[name or task.method_label] = estimate
    return estimates


def _sorted(images: ImagesByClass) -> ImagesByClass:
    check_images_by_class(images)
    check_names_differ(list(images))
    if blank := [name for name in images if not name.strip()]:
        raise UserError(f"Expected the name of a class, got {blank[0]!r}.")
    return {name: list(images[name]) for name in sorted(images)}


def _read_examples(
    classes: ImagesByClass, model: EmbeddingModel, on_unreadable: OnUnreadable | None, on_read: OnRead | None
) -> Examples:
    """Return the labeled examples; raise UserError if a class has none, or if two classes have the same image."""
    numbers, labels = {name: label for label, name in enumerate(classes)}, list[int]()
    first: dict[str, tuple[str, ImageInput]] = {}

    def examples() -> Iterator[Example]:
        for name, image, example in read_labeled(classes, model.image_preprocessing, on_unreadable, on_read, True):
            other, there = first.setdefault(example.sha256, (name, image))
            if other != name:
                both = f"The classes {other!r} and {name!r} have an image in common"
                if isinstance(image, str | Path):
                    both = f"{image} ({name}) and {name_of(there)} ({other}) are the same image"
                raise UserError(f"{both}: keep it in one class.")
            labels.append(numbers[name])
            yield example

    features, hashes, thumbnails = model.embed_examples(examples())
    if missing := sorted(name for name in classes if numbers[name] not in labels):
        raise UserError(f"No image of class {missing[0]!r} can be read: add one that can, or leave it out.")
    return Examples(features, np.array(labels, dtype=np.int64), hashes, thumbnails)
