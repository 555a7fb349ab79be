"""What was acknowledged survives kill -9."""

import pytest
from killed_server import kill_and_look


def check(store, kills):
    acknowledged, found, ready = kill_and_look(store, kills)
    assert ready == 200
    assert acknowledged
    assert acknowledged <= found


def test_acknowledged_examples_survive_five_kills(tmp_path):
    check(tmp_path / "store", 5)


@pytest.mark.slow
def test_acknowledged_examples_survive_a_hundred_kills(tmp_path):
    check(tmp_path / "store", 100)
