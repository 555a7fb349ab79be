import socket

import pytest

from tapnet.errors import UserError
from tapnet.jobs.ray_session import ray_session


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
