"""Against a server on this machine."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tapnet.cli import main
from tapnet.data import downloading
from tapnet.data.downloading import Remote, download

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT at every path; `ranges` and `cut` make it a worse server."""

    daemon_threads = True
    ranges, cut, content = True, 0, CONTENT

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def remote(self, name="images.zip", md5=MD5):
        return Remote(f"http://127.0.0.1:{self.server_port}/{name}", md5)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        start = int(wanted[6:-1]) if wanted and self.server.ranges else 0
        content = self.server.files[self.path] if hasattr(self.server, "files") else self.server.content
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : self.server.cut or None])

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
    assert download(server.remote(), tmp_path, quiet).read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["images.zip"]


def test_download_reports_progress_up_to_the_end(server, tmp_path):
    seen = []
    download(server.remote(), tmp_path, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(CONTENT), len(CONTENT))


def test_download_resumes_where_it_was_cut_off(server, tmp_path):
    server.cut = 300_000
    with pytest.raises(ConnectionError, match="again"):
        download(server.remote(), tmp_path, quiet)
    server.cut = 0
    assert download(server.remote(), tmp_path, quiet).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-"]


def test_download_starts_again_with_a_server_that_cannot_resume(server, tmp_path):
    (tmp_path / "images.zip.part").write_bytes(CONTENT[:1000])
    server.ranges = False
    assert download(server.remote(), tmp_path, quiet).read_bytes() == CONTENT


def test_download_whole_part_is_only_checked(server, tmp_path):
    (tmp_path / "images.zip.part").write_bytes(CONTENT)
    assert download(server.remote(), tmp_path, quiet).read_bytes() == CONTENT


def test_download_does_not_fetch_what_is_there(server, tmp_path):
    (tmp_path / "images.zip").write_bytes(CONTENT)
    download(server.remote(), tmp_path, quiet)
    assert server.asked == []


def test_download_wrong_checksum_is_refused_and_deleted(server, tmp_path):
    with pytest.raises(ValueError, match="MD5"):
        download(server.remote(md5="0" * 32), tmp_path, quiet)
    assert list(tmp_path.iterdir()) == []


def test_download_damaged_part_is_fetched_anew_the_next_time(server, tmp_path):
    (tmp_path / "images.zip.part").write_bytes(b"x" * 1000)
    with pytest.raises(ValueError, match="try again"):
        download(server.remote(), tmp_path, quiet)
    assert download(server.remote(), tmp_path, quiet).read_bytes() == CONTENT


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/images.zip", "http://no-such-host.invalid/images.zip"])
def test_download_without_a_network_says_what_to_do(tmp_path, url):
    with pytest.raises(ConnectionError, match=r"could not be fetched .*tapnet data prepare"):
        download(Remote(url, MD5), tmp_path, quiet)


def test_download_omniglot_fetches_and_prepares_it(server, tmp_path, make, monkeypatch, capsys):
    drawings = {
        "images_background": {"images_background/Greek/character01/0394_01.png": make.png(9)},
        "images_evaluation": {"images_evaluation/Gurmukhi/character42/1_01.png": make.png(9)},
    }
    server.files = {f"/{name}.zip": make.zip(tmp_path / name, files).read_bytes() for name, files in drawings.items()}
    remotes = tuple(
        server.remote(f"{name}.zip", hashlib.md5(server.files[f"/{name}.zip"]).hexdigest()) for name in drawings
    )
    monkeypatch.setitem(downloading.DOWNLOADS, "omniglot", remotes)
    assert main(["data", "download", "omniglot", "--root", str(tmp_path / "root")]) == 0
    assert "omniglot is ready" in capsys.readouterr().out


def test_download_of_a_licensed_set_says_where_it_comes_from_and_what_is_read(tmp_path, capsys):
    assert main(["data", "download", "mini-imagenet", "--root", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert "image-net.org" in printed.out
    assert "mini-imagenet-cache-train.pkl" in printed.out
    assert "tapnet data prepare mini-imagenet --from PATH" in printed.err
