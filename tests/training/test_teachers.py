import shutil

import pytest
import torch
from torch.nn import functional as F

from tapnet.checkpoint import read_checkpoint
from tapnet.checkpoint_files import BEST, LAST
from tapnet.data.batches import EpisodeImages
from tapnet.errors import UserError
from tapnet.evaluation.candidates import Candidate, EvaluationData
from tapnet.methods import TapNet
from tapnet.recipe_file import changed, recipe_from
from tapnet.training import RunFolder, train
from tapnet.training.faults import Diverged, episode_loss
from tapnet.training.teachers import Teachers

pytestmark = pytest.mark.usefixtures("short_evaluation")

RECIPE = recipe_from(
    {
        "name": "small",
        "data": {"name": "quickdraw"},
        "backbone": {"name": "conv4", "options": {"widths": [4, 4, 4, 4]}},
        "method": {"name": "tapnet", "options": {"num_references": 6}},
        "training": {"way": 6, "shot": 1, "query": 2, "episodes": 4, "divisions": 2},
        "validation": {"way": 5, "shot": 1, "query": 5, "episodes": 20, "every": 2},
    },
    "test",
)


@pytest.fixture
def teacher(tmp_path):
    """The folder of a short run."""
    train(changed(RECIPE, ["name=teacher", "seed=1"]), tmp_path / "teacher", device="cpu", test=False)
    return tmp_path / "teacher"


def taught_by(*folders, changes=()):
    return changed(RECIPE, [f"training.teachers=[{', '.join(map(str, folders))}]", *changes])


def episode(way=6):
    images = EpisodeImages(torch.rand(way * 3, 1, 8, 8), way, shot=1, query=2, classes=torch.arange(way))
    return images.with_divisions(2, torch.Generator().manual_seed(0))


def test_targets_are_a_mixture_of_labels_and_mean_predictions(small_tapnet):
    other = TapNet(small_tapnet.backbone, num_references=6).eval()
    images = episode()
    targets = Teachers([small_tapnet, other], weight=0.25).targets(images)
    labels = F.one_hot(images.query_labels, 6).float()
    for division, (support, query) in enumerate(images.divided(small_tapnet.embed(images.images))):
        predicted = [each.logits(support, images.support_labels, query).softmax(-1) for each in (small_tapnet, other)]
        expected = 0.75 * labels + 0.25 * sum(predicted) / 2
        torch.testing.assert_close(targets[division], expected)


def test_targets_have_no_gradient_and_do_not_depend_on_the_other_queries(small_tapnet):
    images = episode()._replace(orders=None)
    targets = Teachers([small_tapnet], weight=1.0).targets(images)
    assert not targets.requires_grad
    changed_query = images.images.clone()
    changed_query[-1] = 0
    again = Teachers([small_tapnet], weight=1.0).targets(images._replace(images=changed_query))
    torch.testing.assert_close(again[:, :-1], targets[:, :-1])


def test_a_run_learns_from_its_teachers(tmp_path, teacher):
    for name, recipe in (("alone", RECIPE), ("taught", taught_by(teacher))):
        train(recipe, tmp_path / name, device="cpu", test=False)
    alone, taught = (read_checkpoint(tmp_path / name / LAST).weights["references"] for name in ("alone", "taught"))
    assert not torch.equal(alone, taught)
    assert read_checkpoint(tmp_path / "taught").header.origin.startswith("distilled from teacher after ")


def test_a_run_with_teachers_resumes_exactly(tmp_path, teacher):
    recipe = taught_by(teacher)
    train(recipe, tmp_path / "whole", device="cpu", test=False)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "parts", device="cpu", test=False, watch=_interrupt_after(2))
    train(recipe, tmp_path / "parts", device="cpu", test=False, resume=True)
    whole, parts = (read_checkpoint(tmp_path / name / LAST) for name in ("whole", "parts"))
    for name, tensor in whole.weights.items():
        torch.testing.assert_close(parts.weights[name], tensor, rtol=0, atol=0)


def _interrupt_after(episodes):
    def watch(step):
        if step.episode == episodes:
            raise KeyboardInterrupt

    return watch


def test_a_run_does_not_resume_with_another_teacher(tmp_path, teacher):
    recipe = taught_by(teacher)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "run", device="cpu", test=False, watch=_interrupt_after(2))
    train(changed(RECIPE, ["name=teacher", "seed=2"]), tmp_path / "other", device="cpu", test=False)
    shutil.copy(tmp_path / "other" / BEST, teacher / BEST)
    with pytest.raises(UserError, match=r"cannot resume with other teachers: .*distilled from teacher after"):
        train(recipe, tmp_path / "run", device="cpu", test=False, resume=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["training.way=8", "method.options.num_references=8"], "knows episodes of up to 6 classes, training.way is 8"),
        (["training.teachers=[photos-fast]"], r"takes images of shape \(3, .*the recipe have \(1, 28, 28\)"),
        (["training.teachers=[runs/quickdraw]"], r"training.teachers: .*`tapnet train quickdraw` trains it\.$"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(tmp_path, teacher, changes, message):
    with pytest.raises(UserError, match=message):
        train(taught_by(teacher, changes=changes), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_classes_that_a_teacher_was_trained_on_are_not_unseen(tmp_path):
    train(changed(RECIPE, ["data.train_split=test"]), tmp_path / "teacher", device="cpu")
    train(taught_by(tmp_path / "teacher"), tmp_path / "run", device="cpu")
    assert "of a network that it learned from" in RunFolder(tmp_path / "run").metadata()["not_tested"]
    found = Candidate.open(str(tmp_path / "run"), EvaluationData()).overlap
    assert found.trained_on == found.classes


def test_a_saved_episode_has_the_loss_that_its_teachers_gave(tmp_path, teacher, monkeypatch):
    monkeypatch.setattr("tapnet.training.faults.EXPLODED", 1e-3)
    with pytest.raises(Diverged) as caught:
        train(taught_by(teacher), tmp_path / "run", device="cpu", precision="float32", test=False)
    told = float(str(caught.value).split(" is ")[1].split(":")[0])
    assert episode_loss(tmp_path / "run" / "episode-0.safetensors") == pytest.approx(told, rel=1e-4)
