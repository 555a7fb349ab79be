import socket

import pytest

from tapnet.cli import main
from tapnet.errors import UserError
from tapnet.jobs.on_ray import ray_session


@pytest.fixture(autouse=True)
def _not_connected(monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "nonsense", "127.0.0.1:", ":6379"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(UserError, match=f"Expected auto, local or host:port, got {address}"), ray_session(address):
        pass


def test_a_port_at_which_nobody_listens_is_refused_at_once():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can take it meanwhile
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(UserError, match=f"There is no Ray cluster at {address}"), ray_session(address):
            pass


def test_nothing_is_left_behind_by_a_cluster_that_is_not_there(drawing_folders, drawing_task, tmp_path, capsys):
    out = tmp_path / "out.parquet"
    words = ["predict", drawing_task, drawing_folders / "new", "--engine", "ray", "--address", "nonsense", "--out", out]
    assert main([*map(str, words)]) == 2
    assert "Expected auto, local or host:port, got nonsense" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("auto", r"There is no Ray cluster at auto: timed out\. If it asks for a token, set RAY_AUTH_MODE=token"),
        ("local", r"Ray cannot be started on this machine: timed out\.$"),
    ],
)
def test_a_cluster_that_does_not_start_says_why(monkeypatch, address, words):
    def init(**_):
        raise Exception("timed\nout")  # as Ray does

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(UserError, match=words), ray_session(address):
        pass
