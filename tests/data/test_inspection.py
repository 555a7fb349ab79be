import numpy as np
import pytest

from tapnet.data import DATASETS, load_dataset
from tapnet.data.episodes import EpisodeSampler, EpisodeSpec
from tapnet.data.inspection import check, contact_sheet, episode_sheet


@pytest.fixture
def findings(pack):
    """`findings(dataset, path)`: what a check says, by subject."""

    def run(dataset, path, **options):
        checked = check(DATASETS[dataset], pack(dataset, path, **options), lambda _done, _all: None)
        return {finding.subject: finding for finding in checked}

    return run


@pytest.fixture
def mini(make, tmp_path):
    """Classes of miniImageNet: two of train, one of test, all images different."""
    names = {"n01532829": (1, 2), "n01558993": (3, 4), "n01930112": (5, 6)}
    return make.tree(tmp_path / "mini", {f"{c}/{v}.png": make.png(v) for c, values in names.items() for v in values})


def test_check_counts_and_says_what_is_missing_or_resized_and_what_that_means(findings, mini):
    checked = findings("mini-imagenet", mini, size=42)
    assert checked["classes"].words == "3"
    assert checked["images"].words == "6 of 42×42×3"
    assert checked["resized"].words == "6 images by lanczos, squash"
    assert not checked["published size"].good
    assert checked["split train"].words == "2 classes, 4 images"
    assert checked["published classes"].words.startswith("97 of 100 classes are missing (n01704323, ")
    assert "not comparable" in checked["published classes"].words
    assert all(checked[f"same image in {where}"].good for where in ("one class", "two classes", "two splits"))
    assert not any(subject.startswith("published") for subject in findings("folder", mini))


@pytest.mark.parametrize(
    ("copy", "where"),
    [("n01532829/9.png", "one class"), ("n01558993/9.png", "two classes"), ("n01930112/9.png", "two splits")],
)
def test_check_finds_a_copied_image_and_names_it(findings, mini, make, copy, where):
    make.file(mini / copy, make.png(1))
    words = findings("mini-imagenet", mini)[f"same image in {where}"].words
    assert words.startswith(f"1 (n01532829/1.png = {copy})")


def test_check_lists_what_was_left_out_and_counts_no_class_without_a_readable_image(findings, mini, make):
    for value in (3, 4):
        make.file(mini / "n01558993" / f"{value}.png", b"no image")
    checked = findings("mini-imagenet", mini, skip_bad=True)
    assert "n01558993/3.png (not an image of a known format)" in checked["left out"].words
    assert checked["classes"].words == "2"
    assert checked["split train"].words == "1 class, 2 images"
    assert checked["no readable image"].words == "1 class: n01558993"
    assert checked["published classes"].words.startswith("98 of 100 classes are missing")


def test_check_changed_pixels_are_refused(pack, mini):
    packed = pack("mini-imagenet", mini)
    path = packed.folder / "images.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(ValueError, match=r"are damaged.*Prepare them again"):
        check(DATASETS["mini-imagenet"], packed, lambda _done, _all: None)


@pytest.fixture(scope="module")
def drawings():
    return load_dataset("quickdraw", "test", rotations=4)


def shows(sheet, tile):
    """Whether the sheet holds this tile, enlarged twice."""
    pixels = np.asarray(sheet)[..., 0]
    wanted = tile[..., 0].repeat(2, axis=0).repeat(2, axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(pixels, wanted.shape)
    starts = np.argwhere((windows[:, :, 0, 0] == wanted[0, 0]) & (windows[:, :, -1, 9] == wanted[-1, 9]))
    return any(np.array_equal(windows[tuple(start)], wanted) for start in starts)


def test_contact_sheet_shows_the_first_images_of_first_and_last_class_as_they_are_gathered(drawings):
    sheet = contact_sheet(drawings, classes=3, per_class=2)
    assert shows(sheet, drawings.gather(np.array([0]))[0])
    assert shows(sheet, drawings.gather(np.array([3 * 6000 + 5901]))[0])
    whole = contact_sheet(drawings, classes=240, per_class=1)
    assert contact_sheet(drawings, classes=10**12, per_class=1).size == whole.size


def test_episode_sheet_shows_every_image_of_the_episode(drawings):
    sampler = EpisodeSampler(drawings.labels, EpisodeSpec(3, 1, 2, seed=4))
    sheet, episode = episode_sheet(drawings, sampler, 7), sampler[7]
    for positions in (episode.support, episode.query):
        assert all(shows(sheet, tile) for tile in drawings.gather(positions.reshape(-1)))
