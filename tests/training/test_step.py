"""One step: its gradient, its precision, what it waits for, episodes that diverge."""

import math

import pytest
import torch
from small_runs import new_run, small_recipe
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tapnet.errors import Diverged
from tapnet.methods import METHODS
from tapnet.training.loader import EpisodeLoader, episode_loss
from tapnet.training.loop import MeanOfStatistics

READS = {"item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__"}  # the host waits for these
SIZED_BY_VALUES = {"nonzero", "_unique", "_unique2", "unique_dim", "unique_consecutive", "masked_select"}  # … and these
COMPARED = {"_local_scalar_dense", "is_nonzero", "equal"}


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
        indices = [index for part in args if isinstance(part, list | tuple) for index in part]
        by_mask = name.startswith("index") and any(
            isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices
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
def test_step_waits_for_its_device_once(tmp_path, method, options, monkeypatch):
    """After backward, to read what came out; then it reads the sums over processes, which are the host's own."""
    one_hot = F.one_hot  # checks its argument on a CPU; on a GPU the kernel does
    monkeypatch.setattr(F, "one_hot", lambda labels, way: (labels[..., None] == torch.arange(way)).to(torch.int64))
    assert torch.equal(F.one_hot(torch.tensor([2, 0]), 3), one_hot(torch.tensor([2, 0]), 3))
    run = new_run(small_recipe(method, options, meta_batch=2), tmp_path)
    run.step()  # the optimizer makes its state
    with Waits() as waits, Reads() as reads:
        run.step()
    assert waits.names == []
    assert reads.names == ["tolist", "tolist"]


def test_waits_are_counted_in_both_directions():
    values = torch.ones(3, requires_grad=True)
    with Waits() as waits:
        values[values > 0].sum().backward()
        _ = values.nonzero(), values.unique(), bool(values.sum() > 0)
    assert {"index", "index_put", "nonzero", "_unique2", "_local_scalar_dense"} <= {*waits.names}


@pytest.fixture
def loader():
    recipe = small_recipe()
    loader = EpisodeLoader(recipe, recipe.data.images("train"), torch.device("cpu"))
    yield loader
    loader.close()


def test_episode_prepared_ahead_is_the_one_prepared_when_asked(loader):
    for index in (0, 1, 2, 1, 3):
        episode, expected = loader[index], loader.prepare(index)
        assert torch.equal(episode.images, expected.images)
        assert torch.equal(episode.classes, expected.classes)


def test_episode_that_cannot_be_prepared_ahead_fails_when_it_is_asked_for(loader, monkeypatch):
    prepare = loader.prepare
    monkeypatch.setattr(loader, "prepare", lambda index: prepare(index) if index == 0 else 1 / 0)
    assert loader[0].way == 6
    with pytest.raises(ZeroDivisionError):
        _ = loader[1]


def test_support_and_query_of_an_episode_are_augmented_together():
    """All images of an episode are rotated by the same quarters, as the generator of the episode draws them."""
    rotated, plain = (small_recipe(augmentation=augmentation) for augmentation in ("rotate", "none"))
    for index in range(6):
        after, before = (
            EpisodeLoader(recipe, recipe.data.images("train"), torch.device("cpu")).prepare(index).images
            for recipe in (rotated, plain)
        )
        assert any(torch.equal(after, before.rot90(quarters, (-2, -1))) for quarters in range(4))


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bf16", torch.bfloat16)])
def test_step_computes_in_the_precision_of_the_run(tmp_path, precision, dtype):
    run, dtypes = new_run(small_recipe(), tmp_path, precision), set()
    for module in run.method.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(lambda _, __, output: dtypes.add(output.dtype))
    run.step()
    assert dtypes == {dtype}


@pytest.mark.parametrize("method", METHODS)
def test_step_in_bf16_has_a_finite_loss_for_every_method(tmp_path, method):
    option = METHODS[method].way_option
    assert math.isfinite(new_run(small_recipe(method, {option: 6} if option else {}), tmp_path, "bf16").step())


def test_statistics_of_a_meta_batch_move_once_by_its_mean():
    norm = torch.nn.BatchNorm1d(3, momentum=0.1)
    batches = [torch.randn(8, 3) for _ in range(4)]
    statistics = MeanOfStatistics(norm)
    for batch in batches:
        norm(batch)
        statistics.after_episode()
    statistics.store_mean(4)
    mean = torch.stack([batch.mean(dim=0) for batch in batches]).mean(dim=0)
    torch.testing.assert_close(norm.running_mean, 0.1 * mean)
    assert norm.num_batches_tracked == 1


def test_episode_that_diverged_is_kept_and_gives_its_loss_again(tmp_path):
    run = new_run(small_recipe(divisions=2), tmp_path)
    run.method.references.data *= 1e5
    with pytest.raises(Diverged, match=r"loss of episode 0 is .*: lower training.learning_rate\. .*episode-0") as error:
        run.step()
    told = float(str(error.value).split(" is ")[1].split(":")[0])
    assert episode_loss(tmp_path / "episode-0.safetensors") == pytest.approx(told, rel=1e-4)


def test_features_that_are_not_numbers_stop_with_their_episode_kept(tmp_path):
    run = new_run(small_recipe(), tmp_path, "bf16")
    run.method.references.data.fill_(math.nan)
    with pytest.raises(Diverged, match=r"loss of episode 0 is nan: lower .*, or train in precision float32\. "):
        run.step()
    assert math.isnan(episode_loss(tmp_path / "episode-0.safetensors"))


def test_gradient_that_is_not_finite_does_not_reach_the_weights(tmp_path):
    run = new_run(small_recipe(), tmp_path)
    before = {name: parameter.detach().clone() for name, parameter in run.method.named_parameters()}
    run.method.references.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(Diverged, match="gradient at episode 0 is not finite"):
        run.step()
    assert all(torch.equal(parameter, before[name]) for name, parameter in run.method.named_parameters())
