import dataclasses
import json
import shutil

import pytest
import torch
from small_runs import interrupt_after, new_run, small_recipe
from torch.nn import functional as F

from tapnet.checkpoint import Checkpoint, Header, Lineage, load, read_checkpoint
from tapnet.data import load_dataset
from tapnet.data.batches import EpisodeImages, episode_images
from tapnet.data.episodes import EpisodeSpec
from tapnet.errors import Diverged, UserError
from tapnet.evaluation.candidates import Candidate, EvaluationData, class_overlap
from tapnet.methods import METHODS, TapNet
from tapnet.paths import LAST
from tapnet.recipe import changed, load_recipe
from tapnet.training import Interrupted, RunFolder, train
from tapnet.training.loader import episode_loss
from tapnet.training.teachers import load_teachers, teacher_targets

pytestmark = pytest.mark.usefixtures("short_evaluation")

SHAPE = (1, 28, 28)
RECIPE = changed(
    small_recipe(episodes=4, divisions=2, augmentation="none"), ["backbone.options={widths: [4, 4, 4, 4]}"]
)


def saved(recipe, path):
    """A checkpoint of random weights, running statistics included."""
    torch.manual_seed(recipe.seed + 1)
    method = recipe.build(SHAPE)
    state = method.state_dict().items()
    weights = {name: t + 0.1 * torch.rand_like(t) if t.is_floating_point() else t for name, t in state}
    Checkpoint(Header(dataclasses.replace(recipe, name="teacher"), SHAPE, episode=7), weights).write(path)
    return path


@pytest.fixture
def teacher(tmp_path):
    return saved(RECIPE, tmp_path / "teacher.safetensors")


def of_method(name, **options):
    """The recipe with another method."""
    way = METHODS[name].way_option
    method = {"name": name, "options": options | ({way: 6} if way else {})}
    return changed(RECIPE, ["training.divisions=1", f"method={json.dumps(method)}"])


def taught_by(*paths, changes=()):
    return changed(RECIPE, [f"training.teachers=[{', '.join(map(str, paths))}]", *changes])


def episode(way=6, shape=(1, 8, 8)):
    images = EpisodeImages(torch.rand(way * 3, *shape), way, shot=1, query=2, classes=torch.arange(way))
    return images.with_divisions(2, torch.Generator().manual_seed(0))


def run_in(folder, recipe, **options):
    train(recipe, folder, device="cpu", precision="float32", test=False, **options)
    return read_checkpoint(folder / LAST)


def test_targets_are_a_mixture_of_labels_and_mean_predictions(small_tapnet):
    other = TapNet(small_tapnet.backbone, num_references=6).eval()
    images = episode()
    targets = teacher_targets(images, [small_tapnet, other], 0.25)
    labels = F.one_hot(images.query_labels, 6).float()
    for division, (support, query) in enumerate(images.divided(small_tapnet.embed(images.images))):
        episode_of = support, images.support_labels, query, images.way
        predicted = [method.logits(*episode_of).softmax(-1) for method in (small_tapnet, other)]
        expected = 0.75 * labels + 0.25 * sum(predicted) / 2
        torch.testing.assert_close(targets[division], expected)


def test_targets_have_no_gradient_and_do_not_depend_on_the_other_queries(small_tapnet):
    images = episode()._replace(orders=None)
    targets = teacher_targets(images, [small_tapnet], 1.0)
    assert not targets.requires_grad
    changed_query = images.images.clone()
    changed_query[-1] = 0
    again = teacher_targets(images._replace(images=changed_query), [small_tapnet], 1.0)
    torch.testing.assert_close(again[:, :-1], targets[:, :-1])


TAKEN = ("tapnet", "protonet", "matching", "relation", "tadam-alpha", "tadam-tc", "snail", "shifted-neurons")


@pytest.mark.parametrize("name", TAKEN)
def test_a_teacher_predicts_as_its_method_does(name, tmp_path):
    """Also if a method reaches into the layers of its backbone."""
    path = saved(of_method(name), tmp_path / "other.safetensors")
    images, method = episode(shape=SHAPE), load(path)
    training = taught_by(path, changes=["training.teacher_weight=1"]).training
    teachers, _ = load_teachers(training, SHAPE, torch.device("cpu"))
    with torch.no_grad():
        expected = torch.stack(method.episode_logits(images)).softmax(dim=-1)
    torch.testing.assert_close(teacher_targets(images, teachers, 1.0), expected, rtol=1e-3, atol=1e-4)


def test_a_run_learns_what_its_teacher_predicts(tmp_path):
    """A teacher that is never sure makes a network that is less sure than one that learned from labels."""
    unsure = saved(of_method("protonet", temperature=1e6), tmp_path / "unsure.safetensors")
    longer = ["training.episodes=40", "training.learning_rate=1e-2", "validation.every=40"]
    drawings = load_dataset("quickdraw", "val")
    unseen = episode_images(drawings, drawings.sampler(EpisodeSpec(6, 1, 5))[0])
    highest = []
    for name, recipe in (("alone", RECIPE), ("taught", taught_by(unsure, changes=["training.teacher_weight=1"]))):
        run_in(tmp_path / name, changed(recipe, longer))
        (logits,) = load(tmp_path / name).episode_logits(unseen)
        highest.append(logits.softmax(dim=-1).amax(dim=-1).mean().item())
    assert highest[1] < 0.8 * highest[0]


def test_the_lineage_of_a_run_names_its_teachers_before_its_initial_weights(tmp_path, teacher):
    other = saved(changed(RECIPE, ["seed=5"]), tmp_path / "other.safetensors")
    header = run_in(tmp_path / "run", taught_by(teacher, other, changes=[f"training.init_from={other}"])).header
    assert header.lineage.describe() == [
        "distilled from 2 networks of teacher after 7 episodes",
        "initialized from teacher after 7 episodes",
    ]
    assert len(header.lineage.ancestors) == 3
    assert len(header.lineage.networks()) == 2


@pytest.mark.parametrize("changes", [(), ("training.ema_decay=0.5", "training.init_from=TEACHER")])
def test_a_run_with_teachers_resumes_exactly_also_where_they_moved(tmp_path, teacher, changes):
    recipe = taught_by(teacher, changes=[change.replace("TEACHER", str(teacher)) for change in changes])
    whole = run_in(tmp_path / "whole", recipe)
    with pytest.raises(Interrupted):
        run_in(tmp_path / "parts", recipe, watch=interrupt_after(2))
    moved = shutil.copy(teacher, tmp_path / "moved.safetensors")
    parts = run_in(tmp_path / "parts", changed(recipe, [f"training.teachers=[{moved}]"]), resume=True)
    assert parts.header.lineage == whole.header.lineage
    for name, tensor in whole.weights.items():
        torch.testing.assert_close(parts.weights[name], tensor, rtol=0, atol=0)


def test_a_run_does_not_resume_with_another_teacher(tmp_path, teacher):
    recipe = taught_by(teacher)
    with pytest.raises(Interrupted):
        run_in(tmp_path / "run", recipe, watch=interrupt_after(2))
    saved(changed(RECIPE, ["seed=2"]), teacher)
    with pytest.raises(UserError, match=r"run was trained with other teachers than .*teacher.safetensors"):
        run_in(tmp_path / "run", recipe, resume=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["training.way=8", "method.options.num_references=8"], "at most 6 classes, but training.way is 8: choose"),
        (
            ["training.teachers=[photos]"],
            r"images of shape \(3, .*, but those of the recipe have \(1, 28, 28\): choose another network\.$",
        ),
        (["training.teachers=[runs/quickdraw]"], r"training.teachers: .*`tapnet train quickdraw` trains it\.$"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(tmp_path, teacher, changes, message):
    with pytest.raises(UserError, match=message):
        run_in(tmp_path / "run", taught_by(teacher, changes=changes))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["omniglot-cpu-wide-distilled", "omniglot-cpu-wide-1200"])
def test_the_bundled_teacher_of_a_recipe_fits_its_episodes(name):
    training = load_recipe(name).training
    (method,), _ = load_teachers(training, SHAPE, torch.device("cpu"))
    assert method.max_way == training.way


def test_a_teacher_that_does_not_predict_each_query_by_itself_is_refused(tmp_path):
    path = saved(of_method("tpn"), tmp_path / "other.safetensors")
    with pytest.raises(UserError, match=r"uses tpn, .*on the other queries: choose another network"):
        run_in(tmp_path / "run", taught_by(path))


def test_classes_that_a_teacher_was_trained_on_are_not_unseen(tmp_path):
    train(changed(RECIPE, ["data.train_split=test"]), tmp_path / "teacher", device="cpu")
    train(taught_by(tmp_path / "teacher"), tmp_path / "run", device="cpu")
    assert "of a network that it learned from" in RunFolder(tmp_path / "run").metadata()["not_tested"]
    overlap = Candidate.open(str(tmp_path / "run"), EvaluationData()).overlap
    assert overlap.trained_on == overlap.classes


def test_classes_of_imagenet_are_not_unseen_by_a_network_with_a_pretrained_teacher(blobs, small_tapnet):
    lineage = Lineage(read_checkpoint("photos-fast").as_ancestors("distilled"))
    images = dataclasses.replace(blobs, name="mini-imagenet")
    recipe = load_recipe("quickdraw")
    assert class_overlap(recipe, small_tapnet, images, lineage=lineage).pretrained_on
    assert not class_overlap(recipe, small_tapnet, images).pretrained_on


def test_a_saved_episode_has_the_loss_that_its_teachers_gave(tmp_path, teacher):
    run = new_run(taught_by(teacher), tmp_path)
    run.method.references.data *= 1e5
    with pytest.raises(Diverged) as error:
        run.step()
    told = float(str(error.value).split(" is ")[1].split(":")[0])
    assert episode_loss(tmp_path / "episode-0.safetensors") == pytest.approx(told, rel=1e-4)
