"""A server that speaks S3, and a Ray cluster of two nodes that can reach it."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

BUCKET = "photos"


@pytest.fixture(scope="session")
def bucket(tmp_path_factory, drawing_folders):
    """The folder behind the bucket s3://photos of a server on this machine; new/ in it holds eight drawings."""
    root = tmp_path_factory.mktemp("s3")
    shutil.copytree(drawing_folders / "new", root / BUCKET / "new")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    key = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    key["AWS_REQUEST_CHECKSUM_CALCULATION"] = "when_required"  # rclone does not read those at the end of an upload
    beside_python = str(Path(sys.executable).parent)  # where pip installs it, on the path or not
    rclone = shutil.which("rclone", path=beside_python) or "rclone"
    command = [rclone, "serve", "s3", "--addr", address, "--auth-key", "key,secret", "--vfs-cache-mode", "off"]
    command += ["--config", os.devnull, "--no-cleanup", "--dir-cache-time", "0s", str(root)]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (key | {"AWS_ENDPOINT_URL": f"http://{address}"}).items():
            patch.setenv(name, value)
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            _wait(address)
            yield root / BUCKET
        finally:
            server.terminate()
            server.wait()


def _wait(address):
    host, port = address.split(":")
    for _ in range(600):
        try:
            socket.create_connection((host, int(port))).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(address)


@pytest.fixture(scope="session")
def cluster(bucket):  # noqa: ARG001 (its address has to be in the environment of the nodes)
    """A Ray cluster of two nodes with one core each, one of which claims to have a GPU; this process is connected."""
    import ray
    from ray._private import services
    from ray.cluster_utils import Cluster

    from tapnet.jobs.on_ray import import_ray

    import_ray()  # sets the environment of all processes
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 would wait for everything else on a busy machine
    node = {"object_store_memory": 10**8, "include_dashboard": False}
    sockets = tempfile.mkdtemp(prefix="ray-", dir="/tmp" if Path("/tmp").is_dir() else None)  # their paths are limited
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "get_node", _patient(services.get_node))
        patch.setenv("RAY_TMPDIR", sockets)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **node})
        cluster.add_node(num_cpus=1, num_gpus=1, **node)
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield cluster
        ray.shutdown()
        cluster.shutdown()
    shutil.rmtree(sockets, ignore_errors=True)


def _patient(get_node):
    """Return a function that waits for a node for minutes: Ray gives it 30 seconds, too few on a busy machine."""

    def get(*arguments):
        for _ in range(600):
            try:
                return get_node(*arguments)
            except RuntimeError:
                time.sleep(0.5)
        raise TimeoutError("The node did not start.")

    return get
