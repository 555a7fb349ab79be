import subprocess
import sys
from pathlib import Path

import pytest

from tapnet.paths import BEST, LAST
from tapnet.training.run_folder import CURVE, RunFolder
from tapnet.training.trajectory import TRAJECTORY

SCRIPT = Path(__file__).with_name("killed_runs.py")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One run that nobody disturbed, one killed at random moments, one killed while it was saving."""
    root = tmp_path_factory.mktemp("killed")
    subprocess.run([sys.executable, str(SCRIPT), str(root)], check=True, timeout=1800)
    return root


@pytest.mark.parametrize("name", ["anywhere", "saving"])
@pytest.mark.parametrize("file", [BEST, LAST, CURVE, TRAJECTORY])
def test_a_killed_run_ends_bit_for_bit_like_one_that_was_not(runs, name, file):
    assert (runs / name / file).read_bytes() == (runs / "whole" / file).read_bytes()


@pytest.mark.parametrize(("name", "least"), [("anywhere", 1), ("saving", 4)])
def test_a_killed_run_says_how_often_it_was_taken_up_again(runs, name, least):
    assert len(RunFolder(runs / name).metadata()["resumed"]) >= least


@pytest.mark.parametrize("name", ["anywhere", "saving"])
def test_a_killed_run_leaves_no_rubbish(runs, name):
    assert {path.name for path in (runs / name).iterdir()} == {path.name for path in (runs / "whole").iterdir()}
