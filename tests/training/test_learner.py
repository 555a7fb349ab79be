import math
from inspect import signature

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tapnet.methods import METHODS
from tapnet.recipe import recipe_from
from tapnet.training import Run
from tapnet.training.episode_loader import EpisodeLoader

READS = {"item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__"}  # the host waits for these


SIZED_BY_VALUES = {"nonzero", "_unique", "_unique2", "unique_dim", "unique_consecutive", "masked_select"}  # … and these
COMPARED = {"_local_scalar_dense", "is_nonzero", "equal"}


def recipe(method="tapnet", meta_batch=1, **options):
    return recipe_from(
        {
            "name": "small",
            "data": {"name": "quickdraw"},
            "backbone": {"name": "conv4", "options": {"widths": [8, 8, 8, 8]}},
            "method": {"name": method, "options": options},
            "training": {
                "way": 6,
                "shot": 1,
                "query": 2,
                "episodes": 4,
                "augmentation": "affine",
                "meta_batch": meta_batch,
            },
            "validation": {"way": 5, "shot": 1, "query": 5, "episodes": 20, "every": 2},
        },
        "test",
    )


class Reads(TorchFunctionMode):
    """What inside makes the host wait for the values of a tensor, by name."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in READS:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


class Waits(TorchDispatchMode):
    """Operations inside, in backward passes too, for which a host waits for its device, by name."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        by_mask = name.startswith("index") and any(
            each is not None and each.dtype in (torch.bool, torch.uint8)
            for part in args
            if isinstance(part, list | tuple)
            for each in part
            if each is None or isinstance(each, torch.Tensor)
        )
        if by_mask or name in SIZED_BY_VALUES | COMPARED:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


METHOD_OPTIONS = [
    ("tapnet", {"num_references": 6}),
    ("tapnet", {"num_references": 6, "differentiable": True}),
    ("protonet", {}),
    ("matching", {}),
    ("relation", {}),
    ("tpn", {}),
    ("tadam-alpha", {}),
    ("maml", {"way": 6}),
    ("snail", {"way": 6}),
]


@pytest.mark.parametrize(("method", "options"), METHOD_OPTIONS)
def test_step_has_no_operation_that_waits_for_values(tmp_path, method, options, monkeypatch):
    one_hot = F.one_hot  # checks its argument on a CPU; on a GPU the kernel does
    monkeypatch.setattr(F, "one_hot", lambda labels, way: (labels[..., None] == torch.arange(way)).to(torch.int64))
    assert torch.equal(F.one_hot(torch.tensor([2, 0]), 3), one_hot(torch.tensor([2, 0]), 3))
    run = Run(recipe(method, **options), tmp_path, "cpu", "float32")
    run.step()  # the optimizer makes its state
    with Waits() as waits:
        run.step()
    assert waits.names == []


def test_waits_are_counted_in_both_directions():
    values = torch.ones(3, requires_grad=True)
    with Waits() as waits:
        values[values > 0].sum().backward()
        _ = values.nonzero(), values.unique(), bool(values.sum() > 0)
    assert {"index", "index_put", "nonzero", "_unique2", "_local_scalar_dense"} <= {*waits.names}


@pytest.mark.parametrize("meta_batch", [1, 2])
@pytest.mark.parametrize(("method", "options"), METHOD_OPTIONS)
def test_step_reads_the_values_of_its_tensors_once(tmp_path, method, options, meta_batch):
    run = Run(recipe(method, meta_batch, **options), tmp_path, "cpu", "float32")
    with Reads() as reads:
        run.step()
    assert reads.names == ["tolist", "tolist"]  # what came out; then the sums, which are the host's own


def test_episode_prepared_ahead_is_the_one_prepared_when_asked(tmp_path):
    run = Run(recipe(num_references=6), tmp_path, "cpu", "float32")
    loader = EpisodeLoader(run.source, run.sampler, seed=3)
    for index in (0, 1, 2, 1, 3):
        episode, expected = loader[index], loader.prepare(index)
        assert torch.equal(episode.images, expected.images)
        assert torch.equal(episode.classes, expected.classes)
    loader.close()


def test_episode_that_cannot_be_prepared_ahead_fails_when_it_is_asked_for(tmp_path, monkeypatch):
    run = Run(recipe(num_references=6), tmp_path, "cpu", "float32")
    loader = EpisodeLoader(run.source, run.sampler, seed=3)
    whole = loader.prepare
    monkeypatch.setattr(loader, "prepare", lambda index: whole(index) if index == 0 else 1 / 0)
    assert loader[0].way == 6
    with pytest.raises(ZeroDivisionError):
        _ = loader[1]
    loader.close()


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bf16", torch.bfloat16)])
def test_step_computes_in_the_precision_of_the_run(tmp_path, precision, dtype):
    run, seen = Run(recipe(num_references=6), tmp_path, "cpu", precision), set()
    convolutions = [module for module in run.method.modules() if isinstance(module, torch.nn.Conv2d)]
    for convolution in convolutions:
        convolution.register_forward_hook(lambda _, __, output: seen.add(output.dtype))
    run.step()
    assert seen == {dtype}


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].trainable])
def test_step_in_bf16_has_a_finite_loss_for_every_method(tmp_path, method):
    way = {"tapnet": "num_references", "tapnet-variant": "num_references"}.get(method, "way")
    needed = {way: 6} if way in signature(METHODS[method]).parameters else {}
    assert math.isfinite(Run(recipe(method, **needed), tmp_path, "cpu", "bf16").step())
