"""Hostile input: each is refused with the right status, and the service is still up."""

import io
import struct
import warnings
import zlib
from contextlib import contextmanager
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient
from PIL import Image
from sqlalchemy.exc import OperationalError
from web_server import BASE, drawing, files, png

from tapnet.data import preprocessing
from tapnet.errors import UserError
from tapnet.inference import read_task, write_task
from tapnet.web.app import create_app
from tapnet.web.problems import Problem
from tapnet.web.security import TokenCheck
from tapnet.web.settings import Limits, Settings


@contextmanager
def application(tmp_path, base_url=BASE, **settings):
    with TestClient(create_app(Settings(store=str(tmp_path / "s"), **settings)), base_url=base_url) as client:
        yield client


def bomb():
    """A PNG of a few hundred bytes that claims to have 10⁹ pixels."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 50_000, 20_000, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


icon = io.BytesIO()
Image.new("RGB", (8, 8)).save(icon, "ICO")
BROKEN = {
    "nothing": b"",
    "text": b"not an image",
    "truncated": drawing("circle", 1)[:150],
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
    "pdf": b"%PDF-1.4\n%\xe2\xe3",
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "format outside of the list": icon.getvalue(),
    "polyglot": b"GIF89a/*<script>*/=1;" + bytes(40),
    "bomb": bomb(),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_file_that_is_no_image_is_refused(client, ready, kind):
    class_id = client.get(ready).json()["classes"][0]["id"]
    for address in (f"{ready}/predict", f"{ready}/classes/{class_id}/examples"):
        answer = client.post(address, files=files(BROKEN[kind]))
        assert answer.status_code in ((413, 422) if kind == "bomb" else (422,)), answer.text
        assert answer.headers["content-type"] == "application/problem+json"
    assert client.get("/v1/ready").status_code == 200


def test_image_with_a_page_behind_it_is_kept_as_a_jpeg_only(client, taught):
    class_id = client.get(taught).json()["classes"][0]["id"]
    sent = files(drawing("circle", 9) + b"<html><script>alert(1)</script>")
    added = client.post(f"{taught}/classes/{class_id}/examples", files=sent).json()["added"]
    answer = client.get(f"{taught}/examples/{added[0]}/thumbnail")
    assert b"script" not in answer.content
    assert Image.open(io.BytesIO(answer.content)).format == "JPEG"
    assert answer.headers["content-type"] == "image/jpeg"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["../../etc/passwd", "a\x00b.png", "C:\\x.png"])
def test_names_of_files_are_not_used(client, ready, name):
    sent = [("images", (name, drawing("cross", 5), "image/png"))]
    assert client.post(f"{ready}/predict", files=sent).status_code in (200, 400)
    assert client.get("/v1/ready").status_code == 200


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/v1/tasks/..%2f..%2f"]
)
def test_paths_do_not_leave_the_page(client, path):
    assert client.get(path).status_code == 404


def test_name_of_a_download_has_plain_letters_only(client, taught):
    client.patch(taught, json={"name": 'a"; filename="../../x\r\nSet-Cookie: a=b'})
    answer = client.get(f"{taught}/file")
    assert answer.headers["content-disposition"] == 'attachment; filename="a-filename-x-Set-Cookie-a-b.task"'


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 100, struct.pack("<Q", 2**60) + b"{}"])
def test_damaged_task_file_is_refused(client, content):
    assert client.post("/v1/tasks/file", content=content).status_code == 422


@pytest.fixture
def rewritten(client, taught, tmp_path):
    """Returns the taught task's file with some of its values replaced, and a digest that fits them."""
    path = tmp_path / "taught.task"
    path.write_bytes(client.get(f"{taught}/file").content)
    task = read_task(path)

    def rewrite(examples=None, **values):
        write_task(replace(task, examples=replace(task.examples, **(examples or {})), **values), path)
        return path.read_bytes()

    return rewrite


@pytest.mark.parametrize(
    "values",
    [
        *({"examples": {"hashes": (name,) * 6}} for name in ("", "a" * 65, "../../etc/passwd", 7, None)),
        *({"options": {"projection_dim": dim}, "method": "tapnet"} for dim in ("2", 0, 10**30, 1.5, True, [2])),
        {"classes": ("a" * 101, "b")},
    ],
)
def test_task_file_with_strange_values_is_refused(client, rewritten, values):
    answer = client.post("/v1/tasks/file", content=rewritten(**values))
    assert answer.status_code == 422, answer.text


def test_bombs_among_the_thumbnails_of_a_task_file_are_not_decoded(client, rewritten, monkeypatch):
    decoded = []
    monkeypatch.setattr(preprocessing, "_eight_bits", decoded.append)
    answer = client.post("/v1/tasks/file", content=rewritten(examples={"thumbnails": (bomb(),) * 6}))
    assert (answer.status_code, decoded) == (201, [])


def test_uploads_have_limited_memory_together_which_is_free_afterwards(tmp_path, monkeypatch):
    with application(tmp_path, limits=Limits(upload_bytes=1000)) as client:
        assert {client.post("/v1/tasks/file", content=bytes(900)).status_code for _ in range(40)} == {422}
        monkeypatch.setattr("tapnet.web.security._BODIES", 0.5)  # as if other bodies had the rest
        answer = client.post("/v1/tasks/file", content=bytes(900))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert client.post("/v1/tasks/file", content=bytes(400)).status_code == 422


def test_store_that_does_not_answer_is_said_so(client, monkeypatch):
    def locked(*_):
        raise OperationalError("SELECT 1", {}, Exception("database is locked"))

    monkeypatch.setattr(client.app.state.engine.store.database, "read", locked)
    for path in ("/v1/ready", "/v1/tasks"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_uploads_beyond_a_limit_are_refused(tmp_path):
    """Bodies by their length and by what comes, images by their number and by their pixels."""
    with application(tmp_path, limits=Limits(upload_bytes=10_000, images=2, pixels=100)) as client:
        assert client.post("/v1/tasks/file", content=bytes(10_001)).status_code == 413
        parts = (bytes(1000) for _ in range(20))  # sent in chunks, without a length
        assert client.post("/v1/tasks/file", content=parts).status_code == 413
        for path in ("/login", "/v1/tasks"):  # take no images, and are small
            assert client.post(path, content=bytes(4097)).status_code == 413
            assert client.post(path, content=(bytes(1000) for _ in range(5))).status_code == 413
        task = client.post("/v1/tasks", json={}).json()["id"]
        class_id = client.post(f"/v1/tasks/{task}/classes", json={"name": "a"}).json()["classes"][0]["id"]
        for width, count, status in ((10, 3, 413), (11, 1, 413), (10, 1, 201)):
            sent = files(*(png(Image.new("L", (width, 10), number)) for number in range(count)))
            answer = client.post(f"/v1/tasks/{task}/classes/{class_id}/examples", files=sent)
            assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("status", "hosts"),
    [
        (421, ["evil.example:8000", "127.0.0.1.evil.example", "", "localhost.evil"]),
        (200, ["localhost:8000", "127.0.0.1", "[::1]:8000"]),
    ],
)
def test_forged_hosts_are_refused_and_local_ones_accepted(client, status, hosts):
    for host in hosts:
        assert client.get("/v1/tasks", headers={"host": host}).status_code == status, host


@pytest.mark.parametrize(
    "headers", [{"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "same-site"}]
)
def test_pages_of_other_sites_change_nothing(client, headers):
    before = client.get("/v1/tasks").json()["total"]
    assert client.post("/v1/tasks", json={}, headers=headers).status_code == 403
    assert client.get("/v1/tasks").json()["total"] == before
    own = {"origin": BASE, "sec-fetch-site": "same-origin"}
    assert client.post("/v1/tasks", json={}, headers=own).status_code == 201


@pytest.fixture
def guarded(tmp_path):
    """A client of an application with the token "correct horse"."""
    with application(tmp_path, token="correct horse") as client:
        yield client


def test_the_right_token_is_asked_for_everywhere_but_at_health_and_login(guarded):
    assert guarded.get("/v1/health").status_code == 200
    for path in ("/v1/tasks", "/v1/openapi.json", "/v1/metrics", "/static/app.js"):
        answer = guarded.get(path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    assert guarded.get("/", follow_redirects=False).headers["location"] == "/login"
    for given in ("Bearer wrong", "Bearer ", "Basic correct", "correct horse", "Bearer correct hors", "Bearer ä"):
        assert guarded.get("/v1/tasks", headers={"authorization": given.encode()}).status_code == 401, given


def test_token_opens_by_header_and_by_login(guarded):
    assert guarded.get("/v1/tasks", headers={"authorization": "Bearer correct horse"}).status_code == 200
    wrong = guarded.post("/login", data={"token": "wrong"}, follow_redirects=False)
    assert wrong.headers["location"] == "/login?wrong"
    right = guarded.post("/login", data={"token": "correct horse"}, follow_redirects=False)
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "correct" not in cookie
    assert guarded.get("/v1/tasks").status_code == 200


def test_guesses_of_the_token_are_limited_at_every_door(guarded):
    guesses = [guarded.get("/v1/tasks", headers={"authorization": f"Bearer {n}"}).status_code for n in range(25)]
    assert guesses == [401] * 20 + [429] * 5
    answer = guarded.post("/login", data={"token": "correct horse"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")
    assert guarded.get("/v1/health").status_code == 200


def test_guesses_of_one_address_do_not_shut_out_another_and_are_forgotten(monkeypatch):
    token = TokenCheck("correct horse")
    monkeypatch.setattr("time.monotonic", lambda: 600.0)
    assert not any(token.accepts("wrong", "a") for _ in range(20))
    with pytest.raises(Problem, match="wait a minute"):
        token.accepts("correct horse", "a")
    assert token.accepts("correct horse", "b")
    monkeypatch.setattr("time.monotonic", lambda: 660.0)
    assert token.accepts("correct horse", "a")


@pytest.mark.parametrize(
    ("make", "values", "words"),
    [
        (Settings, {"host": "0.0.0.0"}, "token"),
        (Settings, {"port": 65536}, "port from 0 to 65535, got 65536"),
        (Settings, {"threads": 0}, "1 thread, got 0"),
        (Settings, {"store": "mysql://here"}, "postgresql://"),
        (Limits, {"queue": -1}, "limit of queue above 0"),
        (Limits, {"pixels": 0}, "limit of pixels above 0"),
    ],
)
def test_settings_that_no_server_can_have_are_refused(make, values, words):
    with pytest.raises(UserError, match=words):
        _ = make(**values).database


def test_every_answer_carries_the_security_headers(client):
    for path in ("/", "/v1/tasks", "/static/app.js", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"


def test_broken_image_leaves_the_warning_filters_as_they_were(client):
    """The decoders are silenced while images are read, and no longer: an error does not keep the reading open."""
    engine, before = client.app.state.engine, list(warnings.filters)
    with pytest.raises(Problem) as kept:
        engine.read([b"no image", drawing("cross", 1)], engine.model("drawings"))
    assert warnings.filters == before
    assert kept.value.status_code == 422
