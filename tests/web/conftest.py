"""Fixtures of the web tests: a client of an application, and a task that was taught."""

import pytest
from fastapi.testclient import TestClient
from web_server import BASE, drawing, files

from tapnet.web.app import create_app
from tapnet.web.settings import Settings


@pytest.fixture(scope="session")
def client(tmp_path_factory):
    """A client of an application whose store all tests share."""
    app = create_app(Settings(store=str(tmp_path_factory.mktemp("store"))))
    with TestClient(app, base_url=BASE) as client:
        yield client


@pytest.fixture
def taught(client):
    """The address of a task with three circles and three crosses."""
    task = client.post("/v1/tasks", json={"name": "shapes"}).json()
    address = f"/v1/tasks/{task['id']}"
    for shape in ("circle", "cross"):
        class_id = client.post(f"{address}/classes", json={"name": shape}).json()["classes"][-1]["id"]
        sent = files(*(drawing(shape, seed) for seed in range(3)))
        assert client.post(f"{address}/classes/{class_id}/examples", files=sent).status_code == 201
    return address


@pytest.fixture(scope="session")
def ready(client):
    """The address of the ready example."""
    return f"/v1/tasks/{client.post('/v1/tasks', json={'example': True}).json()['id']}"
