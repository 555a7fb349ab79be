import numpy as np
import pytest

from tapnet.data import load_dataset
from tapnet.data.catalog.quickdraw import QUICKDRAW, bundled_drawings
from tapnet.data.inspection import check


@pytest.mark.parametrize(("split", "classes"), [("train", 240), ("val", 45), ("test", 60), ("trainval", 285)])
def test_quickdraw_splits_have_their_classes(split, classes):
    drawings = load_dataset("quickdraw", split)
    assert (len(drawings.names), len(drawings)) == (classes, 100 * classes)


def test_quickdraw_splits_share_no_class():
    names = [set(load_dataset("quickdraw", split).names) for split in ("train", "val", "test")]
    assert len(set.union(*names)) == sum(map(len, names)) == 345


def test_quickdraw_ink_is_bright_on_black():
    pixels = bundled_drawings()
    assert pixels.shape == (34500, 28, 28, 1)
    assert pixels.max() == 255
    assert np.median(pixels) == 0


def test_quickdraw_has_sixteen_gray_levels():
    assert np.array_equal(np.unique(bundled_drawings()), np.arange(16) * 17)


def test_quickdraw_drawings_are_centred_by_bounding_box():
    ink = bundled_drawings()[..., 0] > 0
    for axis in (1, 2):
        line = ink.any(axis=3 - axis)
        before, after = line.argmax(axis=1), line[:, ::-1].argmax(axis=1)
        assert (abs(before - after) <= 2).mean() > 0.99  # rounding, and faint edges that quantise to nothing


def test_quickdraw_class_of_a_drawing_does_not_depend_on_the_split():
    train, both = load_dataset("quickdraw", "train"), load_dataset("quickdraw", "trainval")
    last = len(train.names) - 1
    again = both.names.index(train.names[last])
    assert np.array_equal(
        train.gather(np.flatnonzero(train.labels == last)), both.gather(np.flatnonzero(both.labels == again))
    )


def test_quickdraw_file_is_the_one_that_the_tool_built():
    packed = QUICKDRAW.open()
    assert packed.digest() == packed.manifest.sha256


def test_quickdraw_can_be_checked_like_any_other():
    findings = check(QUICKDRAW, QUICKDRAW.open(), lambda _done, _all: None)
    assert {each.subject: each.good for each in findings}["published images"]


def test_quickdraw_unknown_split_lists_the_choices():
    with pytest.raises(ValueError, match=r"train, val, test, trainval, all, got 'dev'"):
        load_dataset("quickdraw", "dev")


def test_load_dataset_unknown_name_lists_the_choices():
    with pytest.raises(ValueError, match="quickdraw"):
        load_dataset("quickdrew", "train")
