"""`tapnet serve` says where it serves; one that cannot start says so in one sentence instead."""

import argparse
import os
import re
import socket

import pytest
import uvicorn

from tapnet.cli import main, serve
from tapnet.web.settings import Settings


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Starts a server that is not to start, and returns the sentence."""
    monkeypatch.setattr(uvicorn, "run", lambda *_, **__: pytest.fail("started"))

    def serve(*flags):
        assert main(["serve", "--no-open", "--store", str(tmp_path / "store"), *flags]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        return err

    return serve


def test_help_shows_every_default(monkeypatch):
    monkeypatch.delenv("TAPNET_TOKEN", raising=False)
    parser = argparse.ArgumentParser()
    serve.add_serve_arguments(parser)
    without = {each.option_strings[-1] for each in parser._actions if "(default: " not in str(each.help)}
    assert without == {"--help", "--allow-host", "--network", "--no-open"}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_serve_on_a_port_in_use_names_it(refused, workers):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert f"Cannot listen on 127.0.0.1:{port}: address already in use." in refused(
            "--port", str(port), "--workers", workers
        )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--device", "cuda:99"], "not on this machine"),
        (["--network", "nosuch"], "nosuch"),
        (["--host", "0.0.0.0"], "(--token)"),
        (["--host", "no.such.host.invalid", "--token", "12345678"], "Cannot listen on no.such.host.invalid"),
    ],
)
def test_serve_that_cannot_start_says_why(refused, flags, words, monkeypatch):
    monkeypatch.delenv("TAPNET_TOKEN", raising=False)
    assert words in refused("--workers", "2", *flags)


def test_serve_over_a_file_says_so_before_it_serves(refused, tmp_path):
    (tmp_path / "store").write_text("no folder")
    assert "is a file, expected a folder" in refused()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_serve_on_any_free_port_prints_the_one_it_listens_on(tmp_path, monkeypatch, capsys, workers):
    started = {}
    monkeypatch.setattr(uvicorn, "run", lambda *_, **options: started.update(options))
    monkeypatch.setattr(os, "environ", os.environ.copy())  # workers get their settings by it
    flags = "--no-open", "--store", str(tmp_path / "store"), "--port", "0", "--workers", workers
    assert main(["serve", *flags]) == 0
    printed = re.search(r"http://127\.0\.0\.1:(\d+)", capsys.readouterr().out)
    assert int(printed[1]) == started["port"] != 0


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "http://127.0.0.1:80"), ("::", "http://[::1]:80"), ("localhost", "http://localhost:80")],
)
def test_serve_shows_an_address_that_a_browser_takes(host, address):
    assert serve._shown_address(Settings(host=host, port=80, token="12345678")) == address
