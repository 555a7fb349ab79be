"""Against a server on this machine."""

import hashlib
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tapnet.cli import main
from tapnet.data import DATASETS
from tapnet.data.dataset import download

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT, or a file of `files`, at every path; `cut` ends it early."""

    daemon_threads = True
    files, cut = {}, None

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def remote(self, name="images.zip", md5=MD5):
        return f"http://127.0.0.1:{self.server_port}/{name}", md5


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        content = self.server.files.get(self.path, CONTENT)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: self.server.cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = Server()
    yield server
    server.shutdown()
    server.server_close()


def quiet(_done, _all):
    pass


def test_download_gives_the_whole_file(server, tmp_path):
    assert download(*server.remote(), tmp_path, quiet).read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["images.zip"]


def test_download_reports_progress_up_to_the_end(server, tmp_path):
    seen = []
    download(*server.remote(), tmp_path, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(CONTENT), len(CONTENT))


def test_download_does_not_fetch_what_is_there(server, tmp_path):
    (tmp_path / "images.zip").write_bytes(CONTENT)
    download(*server.remote(), tmp_path, quiet)
    assert server.asked == []


def test_download_wrong_checksum_is_refused_and_deleted(server, tmp_path):
    with pytest.raises(ValueError, match="another content than was published"):
        download(*server.remote(md5="0" * 32), tmp_path, quiet)
    assert list(tmp_path.iterdir()) == []


def test_download_that_was_cut_off_leaves_nothing_and_can_be_repeated(server, tmp_path):
    server.cut = 300_000
    with pytest.raises(ConnectionError, match="again"):
        download(*server.remote(), tmp_path, quiet)
    assert list(tmp_path.iterdir()) == []
    server.cut = None
    assert download(*server.remote(), tmp_path, quiet).read_bytes() == CONTENT


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/images.zip", "http://no-such-host.invalid/images.zip"])
def test_download_without_a_network_says_what_to_do(tmp_path, url):
    with pytest.raises(ConnectionError, match=r"could not be fetched .*tapnet data prepare"):
        download(url, MD5, tmp_path, quiet)


def test_download_omniglot_fetches_and_prepares_it(server, tmp_path, make, monkeypatch, capsys):
    drawings = {
        "images_background": {"images_background/Greek/character01/0394_01.png": make.png(9)},
        "images_evaluation": {"images_evaluation/Gurmukhi/character42/1_01.png": make.png(9)},
    }
    server.files = {f"/{name}.zip": make.zip(tmp_path / name, files).read_bytes() for name, files in drawings.items()}
    remotes = dict(
        server.remote(f"{name}.zip", hashlib.md5(server.files[f"/{name}.zip"]).hexdigest()) for name in drawings
    )
    monkeypatch.setitem(DATASETS, "omniglot", replace(DATASETS["omniglot"], downloads=remotes))
    assert main(["data", "download", "omniglot", "--root", str(tmp_path / "root")]) == 0
    assert "omniglot is ready" in capsys.readouterr().out


def test_download_of_a_licensed_set_says_where_it_comes_from_and_what_is_read(tmp_path, capsys):
    assert main(["data", "download", "mini-imagenet", "--root", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert "image-net.org" in printed.out
    assert "mini-imagenet-cache-train.pkl" in printed.out
    assert "tapnet data prepare mini-imagenet --from PATH" in printed.err
