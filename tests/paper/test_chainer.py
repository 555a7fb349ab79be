"""What is imported from the authors' code gives their numbers, worked out here in plain NumPy."""

import io
import zipfile

import numpy as np
import pytest
import torch

import tapnet
from tapnet.checkpoint import read_checkpoint
from tapnet.cli import main
from tapnet.data.episodes import EpisodeSpec
from tapnet.evaluation.evaluator import Evaluator
from tapnet.paper.chainer import import_chainer
from tapnet.paper.variants import dimension_accuracies
from tapnet.recipe import load_recipe

WIDTHS, WAYS, WAY, SHOT, SIZE = (6, 8, 10, 32), 20, 5, 3, 21  # 21 → 11 → 6 → 3 → 2: every pooling but one is partial


@pytest.fixture(scope="module")
def arrays():
    """The arrays of a network in Chainer's layout, with a bias everywhere."""
    generator = np.random.default_rng(0)

    def normal(*shape, std=1.0):
        return generator.normal(0, std, shape).astype(np.float32)

    arrays = {"l_phi/W": normal(WAYS, WIDTHS[-1], std=0.5), "l_phi/b": normal(WAYS, std=0.4)}
    for block, (inputs, width) in enumerate(zip((3, *WIDTHS), WIDTHS, strict=False), start=1):
        for layer in "123r":
            into = width if layer in "23" else inputs
            convolution, norm = f"l_conv{block}_{layer}", f"l_norm{block}_{layer}"
            arrays[f"{convolution}/W"] = normal(width, into, 3, 3, std=1 / np.sqrt(9 * into))
            arrays[f"{convolution}/b"] = normal(width, std=0.3)
            arrays[f"{norm}/gamma"] = generator.uniform(0.5, 1.5, width).astype(np.float32)
            arrays[f"{norm}/beta"] = normal(width, std=0.2)
            arrays[f"{norm}/avg_mean"] = normal(width, std=0.3)
            arrays[f"{norm}/avg_var"] = generator.uniform(0.2, 1.5, width).astype(np.float32)
            arrays[f"{norm}/N"] = np.array(7)
    return arrays


@pytest.fixture(scope="module")
def run_folder(arrays, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chainer")
    np.savez_compressed(folder / "authors.npz", **arrays)
    command = ["import-chainer", str(folder / "authors.npz"), "--out", str(folder / "run"), "--image-size", str(SIZE)]
    assert main(command) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def episode():
    """Support and query images, shot after shot, one image of every class each."""
    generator = np.random.default_rng(1)
    centres = generator.random((WAY, 3, SIZE, SIZE))
    noisy = 0.6 * centres + 0.4 * generator.random((SHOT + 4, WAY, 3, SIZE, SIZE))
    images = noisy.astype(np.float32).reshape(-1, 3, SIZE, SIZE)
    return images[: SHOT * WAY], images[SHOT * WAY :]


def convolved(images, arrays, name):
    weight, bias = arrays[f"{name}/W"].astype(np.float64), arrays[f"{name}/b"]
    height, width = images.shape[2:]
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    total = np.zeros((len(images), len(weight), height, width)) + bias[:, None, None]
    for row in range(3):
        for column in range(3):
            window = padded[:, :, row : row + height, column : column + width]
            total += np.einsum("nihw,oi->nohw", window, weight[:, :, row, column])
    return total


def normalized(maps, arrays, name):
    gamma, beta, mean, variance = (
        arrays[f"{name}/{key}"].astype(np.float64)[:, None, None] for key in ("gamma", "beta", "avg_mean", "avg_var")
    )
    return gamma * (maps - mean) / np.sqrt(variance + 2e-5) + beta


def pooled(maps):
    """Max pooling 2×2 that keeps the last partial window."""
    height, width = maps.shape[2:]
    padded = np.pad(maps, ((0, 0), (0, 0), (0, height % 2), (0, width % 2)), constant_values=-np.inf)
    return padded.reshape(*maps.shape[:2], -(-height // 2), 2, -(-width // 2), 2).max(axis=(3, 5))


def features_of(images, arrays):
    maps = images.astype(np.float64)
    for block in range(1, 5):
        branch = maps
        for layer in "123":
            branch = normalized(convolved(branch, arrays, f"l_conv{block}_{layer}"), arrays, f"l_norm{block}_{layer}")
            branch = branch if layer == "3" else np.maximum(branch, 0)
        shortcut = normalized(convolved(maps, arrays, f"l_conv{block}_r"), arrays, f"l_norm{block}_r")
        maps = pooled(np.maximum(branch + shortcut, 0))
    return maps.mean(axis=(2, 3))


def selected(averages, phi, bias):
    """Class after class takes the free reference of the largest score."""
    chosen = []
    for average in averages:
        scores = 2 * (phi @ average + bias) - (average @ average) - (phi**2).sum(axis=1)
        chosen.append(next(k for k in np.argsort(scores)[::-1] if k not in chosen))
    return chosen


def logits_of(support, query, arrays):
    """The authors' logits of queries, and the references that the classes took."""
    phi, bias = arrays["l_phi/W"].astype(np.float64), arrays["l_phi/b"].astype(np.float64)
    averages = features_of(support, arrays).reshape(SHOT, WAY, -1).mean(axis=0)
    chosen = selected(averages, phi, bias)
    taken = phi[chosen]
    modified = WAY * taken - taken.sum(axis=0)
    errors = modified / (np.linalg.norm(modified, axis=1, keepdims=True) + 1e-6)
    errors -= averages / (np.linalg.norm(averages, axis=1, keepdims=True) + 1e-6)
    inside = np.linalg.svd(errors)[2][WAY:].T
    queries, marks = features_of(query, arrays) @ inside, taken @ inside
    lengths = (marks**2).sum(axis=1) + (queries**2).sum(axis=1, keepdims=True)
    return 2 * (queries @ marks.T + bias[chosen]) - lengths, chosen


def test_imported_network_has_the_features_and_logits_of_the_authors(run_folder, arrays, episode):
    method, (support, query) = tapnet.load(run_folder), map(torch.from_numpy, episode)
    np.testing.assert_allclose(method.embed(support).numpy(), features_of(episode[0], arrays), rtol=1e-5, atol=1e-5)
    labels, expected = torch.arange(WAY).repeat(SHOT), logits_of(*episode, arrays)[0]
    np.testing.assert_allclose(method(support, labels, query).numpy(), expected, rtol=1e-4, atol=1e-4)
    head = method.adapt(method.embed(support), labels, WAY).linear()
    softmax = head.logits(method.embed(query)).log_softmax(-1).double()
    torch.testing.assert_close(softmax, torch.from_numpy(expected).log_softmax(-1), rtol=1e-4, atol=1e-4)


def test_bias_decides_which_references_are_selected(arrays, episode):
    """So the agreement above is one of the selection, too."""
    without = arrays | {"l_phi/b": np.zeros(WAYS, np.float32)}
    assert logits_of(*episode, arrays)[1] != logits_of(*episode, without)[1]


def test_task_fitted_on_an_imported_network_has_the_authors_softmax(run_folder, arrays, episode, tmp_path):
    from tapnet.inference import fit_task, load_network, read_task, write_task
    from tapnet.inference.predictor import TaskPredictor
    from tapnet.inference.task import Examples

    network = load_network(str(run_folder))
    support, query = (network.method.embed(torch.from_numpy(images)).numpy() for images in episode)
    labels = np.tile(np.arange(WAY), SHOT)
    examples = Examples(support, labels, tuple(str(i) for i in labels), (b"",) * len(labels))
    task = fit_task([f"class {k}" for k in range(WAY)], examples, network, options={"selection": "closest"})
    write_task(task, tmp_path / "a.task")
    expected = torch.from_numpy(logits_of(*episode, arrays)[0]).softmax(-1).numpy()
    probabilities, _ = TaskPredictor(read_task(tmp_path / "a.task"), network).answer_features(query)
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)


def test_dimension_accuracies_of_an_imported_network_end_at_its_accuracy(run_folder, blobs):
    from dataclasses import replace

    pixels = np.repeat(np.kron(blobs.pixels, np.ones((1, 3, 3, 1), np.uint8))[:, :SIZE, :SIZE], 3, axis=3)
    evaluator = Evaluator(tapnet.load(run_folder), replace(blobs, pixels=pixels))
    curve = dimension_accuracies(evaluator, EpisodeSpec(WAY, 2, 3, 20)).mean(axis=0)
    assert curve[-1] == pytest.approx(evaluator.accuracies(EpisodeSpec(WAY, 2, 3, 20)).mean(), abs=1 / 300)
    assert 0.25 < curve[-1] < 1


def test_zero_bias_of_the_references_leaves_no_parameter(arrays, tmp_path):
    np.savez(tmp_path / "a.npz", **arrays | {"l_phi/b": np.zeros(WAYS, np.float32)})
    checkpoint = import_chainer(tmp_path / "a.npz", load_recipe("mini-imagenet-5shot"))
    assert "reference_bias" not in checkpoint.weights
    assert checkpoint.header.image_shape == (3, 84, 84)


def test_imported_run_says_where_it_comes_from(run_folder):
    header = read_checkpoint(run_folder).header
    assert header.recipe.name == "mini-imagenet-5shot-chainer"
    assert header.recipe.training.way == WAYS
    assert "authors.npz, sha-256" in header.lineage.source


@pytest.mark.parametrize("name", ["best.safetensors", "last.safetensors"])
def test_folder_that_holds_a_run_is_not_written_to(run_folder, tmp_path, capsys, name):
    (tmp_path / name).write_bytes(b"")
    assert main(["import-chainer", str(run_folder.parent / "authors.npz"), "--out", str(tmp_path)]) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [0]


@pytest.mark.parametrize(
    ("key", "change", "words"),
    [
        ("l_norm3_2/beta", lambda _: None, "lacks l_norm3_2/beta"),
        ("l_conv5_1/W", lambda _: np.zeros(3), "has more than the authors' network: l_conv5_1/W"),
        ("l_conv2_1/W", lambda a: a[:, 1:], "l_conv2_1/W needs the shape (8, 6, 3, 3) to fit the others, got (8, 5, 3"),
        ("l_conv1_1/W", lambda a: a[0, 0, 0, 0], "l_conv1_1/W needs the shape"),
        ("l_phi/b", lambda a: a * np.nan, "l_phi/b has a value that is not a finite number"),
        ("l_norm4_1/avg_var", lambda a: -a, "l_norm4_1/avg_var has a negative variance"),
        ("l_conv1_2/W", lambda a: a.astype(int), "l_conv1_2/W holds int64"),
        ("l_norm1_1/N", lambda a: a / 2, "l_norm1_1/N holds float64"),
        ("l_conv1_1/b", lambda a: np.array([a], dtype=object), "l_conv1_1/b: Object arrays cannot be loaded"),
    ],
)
def test_array_that_does_not_fit_is_refused_by_name(arrays, tmp_path, capsys, key, change, words):
    changed = arrays | {key: change(arrays.get(key))}
    np.savez(tmp_path / "a.npz", **{name: array for name, array in changed.items() if array is not None})
    refused(tmp_path, capsys, words)


def refused(folder, capsys, words, *options):
    assert main(["import-chainer", str(folder / "a.npz"), "--out", str(folder / "run"), *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (folder / "run").exists()


def one_array():
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    return stream.getvalue()


@pytest.mark.parametrize("content", [b"", b"nothing", b"\x80\x04N.", one_array()])
def test_file_of_another_kind_is_refused(tmp_path, capsys, content):
    (tmp_path / "a.npz").write_bytes(content)
    refused(tmp_path, capsys, "a.npz is not an npz file")


def test_damaged_file_is_refused(arrays, tmp_path, capsys):
    np.savez(tmp_path / "a.npz", **arrays)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        place = archive.getinfo("l_conv4_1/W.npy").header_offset + 400
    content[place] ^= 0xFF
    (tmp_path / "a.npz").write_bytes(content)
    refused(tmp_path, capsys, "l_conv4_1/W: Bad CRC-32")


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--recipe", "mini-imagenet-5shot-conv4"], "is for conv4"), (["--image-size", "0"], "each at least 1")],
)
def test_options_that_do_not_fit_are_refused(arrays, tmp_path, capsys, options, words):
    refused(tmp_path, capsys, "No such file")
    np.savez(tmp_path / "a.npz", **arrays)
    refused(tmp_path, capsys, words, *options)
