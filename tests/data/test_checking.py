import pytest

from tapnet.data import DATASETS
from tapnet.data.inspection import check


@pytest.fixture
def findings(pack):
    """`findings(dataset, path)`: what a check says, by subject."""

    def run(dataset, path, **options):
        found = check(DATASETS[dataset], pack(dataset, path, **options), lambda _done, _all: None)
        return {each.subject: each for each in found}

    return run


@pytest.fixture
def mini(make, tmp_path):
    """Classes of miniImageNet: two of train, one of test, all images different."""
    names = {"n01532829": (1, 2), "n01558993": (3, 4), "n01930112": (5, 6)}
    return make.tree(tmp_path / "mini", {f"{c}/{v}.png": make.png(v) for c, values in names.items() for v in values})


def test_check_counts_classes_images_and_splits(findings, mini):
    found = findings("mini-imagenet", mini)
    assert found["classes"].words == "3"
    assert found["images"].words == "6 of 84×84×3"
    assert found["split train"].words == "2 classes, 4 images"


def test_check_says_which_classes_are_missing_and_what_that_means(findings, mini):
    words = findings("mini-imagenet", mini)["published classes"].words
    assert words.startswith("97 of 100 classes are missing (n01704323, ")
    assert "not comparable" in words


def test_check_without_duplicates_is_content(findings, mini):
    found = findings("mini-imagenet", mini)
    assert all(found[f"same image in {where}"].good for where in ("one class", "two classes", "two splits"))


@pytest.mark.parametrize(
    ("copy", "where"),
    [("n01532829/9.png", "one class"), ("n01558993/9.png", "two classes"), ("n01930112/9.png", "two splits")],
)
def test_check_finds_a_copied_image_and_names_it(findings, mini, make, copy, where):
    make.file(mini / copy, make.png(1))
    words = findings("mini-imagenet", mini)[f"same image in {where}"].words
    assert words.startswith(f"1 (n01532829/1.png = {copy})")


def test_check_names_the_resize_filter(findings, mini):
    assert findings("mini-imagenet", mini, size=42)["resized"].words == "6 images by lanczos, squash"


def test_check_another_size_than_published_is_told(findings, mini):
    assert not findings("mini-imagenet", mini, size=42)["published size"].good


def test_check_lists_what_was_left_out(findings, mini, make):
    make.file(mini / "n01532829" / "bad.jpg", b"no image")
    words = findings("mini-imagenet", mini, skip_bad=True)["left out"].words
    assert "n01532829/bad.jpg (not an image of a known format)" in words


def test_check_does_not_count_a_class_without_a_readable_image(findings, mini, make):
    make.file(mini / "n01558993" / "3.png", b"no image")
    make.file(mini / "n01558993" / "4.png", b"no image")
    found = findings("mini-imagenet", mini, skip_bad=True)
    assert found["classes"].words == "2"
    assert found["split train"].words == "1 class, 2 images"
    assert found["no readable image"].words == "1 class: n01558993"
    assert found["published classes"].words.startswith("98 of 100 classes are missing")


def test_check_changed_pixels_are_refused(pack, mini):
    packed = pack("mini-imagenet", mini)
    path = packed.folder / "images.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"are damaged.*Prepare them again"):
        check(DATASETS["mini-imagenet"], packed, lambda _done, _all: None)


def test_check_own_images_are_compared_with_nothing_published(findings, mini):
    assert not any(subject.startswith("published") for subject in findings("folder", mini))
