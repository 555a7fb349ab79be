"""Batch prediction and sweeps on a real Ray cluster of two nodes, with workers, nodes and the driver killed."""

import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial

import psutil
import pyarrow.parquet as pq
import pytest
import yaml

from tapnet import training
from tapnet.cli import main
from tapnet.errors import UserError
from tapnet.jobs.batch import plan_batch
from tapnet.jobs.on_ray import predict_on_ray, ray_session, train_on_ray
from tapnet.jobs.sweep import can_resume, read_sweep, train_one_by_one, unfinished
from tapnet.recipe import changed
from tapnet.training import RunFolder

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("ignore")]  # Ray warns of itself
COPIES = 30


@pytest.fixture(scope="module")
def photos(drawing_folders, tmp_path_factory):
    """A folder with 240 drawings and a file that only looks like one."""
    folder = tmp_path_factory.mktemp("many") / "photos"
    for number in range(COPIES):
        shutil.copytree(drawing_folders / "new", folder / str(number))
    (folder / "broken.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def expected(photos, drawing_task, tmp_path_factory):
    """The rows that one process predicts."""
    out = str(tmp_path_factory.mktemp("plain") / "out.parquet")
    list(plan(drawing_task, photos, out).run())
    return rows(out)


def plan(task, source, out):
    return plan_batch(task, [source], str(out), chunk_size=8)


def rows(out):
    table = pq.read_table(out).to_pylist()
    return sorted((row["file"], row["class"], row["reason"], row["task"]) for row in table)


def kill_processes(name):
    """Kill the processes of this cluster whose command has this name in it, and return them."""
    killed = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # or it has ended, and its parent was not told yet
            if name in "".join(process.cmdline()):
                process.kill()
                killed.append(process)
    return killed


@pytest.mark.parametrize("device", ["cpu", "auto"])  # auto: a node claims to have a GPU, for which others read
def test_two_nodes_predict_what_one_process_predicts(photos, drawing_task, tmp_path, expected, monkeypatch, device):
    monkeypatch.chdir(tmp_path)  # where the command runs, not where a worker does
    parts = list(predict_on_ray(plan(drawing_task, photos, "out.parquet"), device=device))
    assert rows(tmp_path / "out.parquet") == expected
    assert sum(part.images for part in parts) == 8 * COPIES + 1


def test_killed_workers_lose_nothing(photos, drawing_task, tmp_path, expected):
    out = str(tmp_path / "out.parquet")
    parts = predict_on_ray(plan(drawing_task, photos, out), device="cpu")
    next(parts)
    assert kill_processes("_PartWriter")
    list(parts)
    assert rows(out) == expected


def test_a_lost_node_loses_nothing(cluster, photos, drawing_task, tmp_path, expected):
    out = str(tmp_path / "out.parquet")
    node = cluster.add_node(num_cpus=1, object_store_memory=10**8)
    parts = predict_on_ray(plan(drawing_task, photos, out), device="cpu")
    next(parts)
    cluster.remove_node(node, allow_graceful=False)
    list(parts)
    assert rows(out) == expected


def test_a_killed_driver_loses_nothing_and_a_second_call_continues(cluster, photos, drawing_task, tmp_path, expected):
    out = tmp_path / "out.parquet"
    job = f"plan_batch({str(drawing_task)!r}, [{str(photos)!r}], {str(out)!r}, chunk_size=8)"
    run = "from tapnet.jobs.batch import plan_batch; from tapnet.jobs.on_ray import predict_on_ray; "
    run += f"list(predict_on_ray({job}, {cluster.address!r}, device='cpu'))"
    driver = subprocess.Popen([sys.executable, "-c", run])
    while not list(out.glob("part-*")):
        assert driver.poll() is None
        time.sleep(0.01)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    again = plan(drawing_task, photos, out)
    assert again.remaining < again.total
    list(predict_on_ray(again, device="cpu"))
    assert rows(out) == expected


def test_images_and_predictions_in_a_bucket(bucket, drawing_task):
    out = "s3://photos/ray.parquet"
    list(predict_on_ray(plan(drawing_task, "s3://photos/new", out), device="cpu"))
    names = sorted(f"s3://photos/{path.relative_to(bucket)}" for path in (bucket / "new").rglob("*.png"))
    assert [file for file, *_ in rows(bucket / "ray.parquet")] == names


def test_an_error_in_a_worker_is_one_sentence(photos, drawing_task, tmp_path):
    out = tmp_path / "out.parquet"
    shutil.copytree(photos / "0", tmp_path / "few")
    job = plan(drawing_task, tmp_path / "few", out)
    (part,) = plan(drawing_task, tmp_path / "few", tmp_path / "plain.parquet").run()
    (out / part.name).mkdir(parents=True)  # in the way
    with pytest.raises(UserError, match=r"^\[Errno 21\].*got a folder: .*What was written stays; the same command"):
        list(predict_on_ray(job, device="cpu"))


def test_a_cluster_that_is_not_there_is_refused_and_leaves_nothing(drawing_task, photos, monkeypatch, capsys, tmp_path):
    def init(**_):
        raise Exception("timed\nout")  # as Ray does

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", init)
    hint = r"\. If it asks for a token, set RAY_AUTH_MODE=token here, too\."
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can take it meanwhile
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        for address, words in (
            *((address, f"Expected auto, local or host:port, got {address}") for address in ("ray://a:1", "b", "c:")),
            (nobody, f"There is no Ray cluster at {nobody}"),
            ("auto", f"There is no Ray cluster at auto: timed out{hint}"),
            ("local", r"Ray cannot be started on this machine: timed out\.$"),
        ):
            with pytest.raises(UserError, match=words), ray_session(address):
                pass
    command = ["predict", drawing_task, photos, "--engine", "ray", "--address", "b", "--out", tmp_path / "out.parquet"]
    assert main([*map(str, command)]) == 2
    assert "Expected auto, local or host:port, got b" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*map(str, command)]) == 2
    assert "pip install 'tapnet[ray]'" in capsys.readouterr().err
    assert not (tmp_path / "out.parquet").exists()


SWEEP = """
recipe: quickdraw
set:
  backbone.options.widths: [8, 8, 8, 8]
  method.options.num_references: 6
  training.way: 6
  training.shot: 1
  training.query: 2
  training.episodes: 40
  validation.episodes: 4
  validation.every: 10
seeds: [0, 1]
"""


@pytest.fixture
def sweep(tmp_path):
    (tmp_path / "mine.yaml").write_text(SWEEP)
    return read_sweep(tmp_path / "mine.yaml")


def curves(out):
    return {path.parent.name: path.read_text() for path in sorted(out.glob("*/curve.jsonl"))}


def test_a_sweep_on_the_cluster_trains_what_one_process_trains(sweep, tmp_path):
    outcomes = list(train_on_ray(sweep.recipes, tmp_path / "ray", device="cpu"))
    assert sorted(outcomes) == [(name, "") for name in sweep.recipes]
    assert unfinished(sweep.recipes, tmp_path / "ray") == {}
    train = partial(training.train, device="cpu", test=False)
    list(train_one_by_one(sweep.recipes, tmp_path / "plain", train))
    assert curves(tmp_path / "ray") == curves(tmp_path / "plain")


def test_a_run_whose_worker_is_killed_is_resumed_elsewhere(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr("tapnet.jobs.on_ray._POLL_SECONDS", 0.05)  # or the runs are over before one is killed
    recipes = {name: changed(recipe, ["training.episodes=200"]) for name, recipe in sweep.recipes.items()}
    out, killed = tmp_path / "runs", []

    def kill_once():
        if not killed and list(out.glob("*/run.json")):
            killed.extend(kill_processes("ray::quickdraw"))  # Ray calls them by the names of the runs

    outcomes = list(train_on_ray(recipes, out, device="cpu", watch=kill_once))
    assert killed
    assert [reason for _, reason in outcomes] == ["", ""]
    assert unfinished(recipes, out) == {}


def test_a_sweep_that_is_stopped_saves_its_runs(sweep, tmp_path):
    recipes = {name: changed(recipe, ["training.episodes=100000"]) for name, recipe in sweep.recipes.items()}
    out = tmp_path / "runs"

    def stop():
        if list(out.glob("*/curve.jsonl")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(train_on_ray(recipes, out, device="cpu", workers=1, watch=stop))
    (folder,) = out.iterdir()
    assert RunFolder(folder).metadata()["state"] == "interrupted"
    assert can_resume(folder)


def test_a_run_that_fails_says_why_and_the_others_end(sweep, tmp_path):
    (tmp_path / "quickdraw-seed0").write_text("in the way")
    outcomes = dict(train_on_ray(sweep.recipes, tmp_path, device="cpu"))
    assert outcomes["quickdraw-seed1"] == ""
    assert "quickdraw-seed0" in outcomes["quickdraw-seed0"]


@pytest.mark.slow
def test_an_ablation_trains_its_variants_on_the_cluster(tmp_path, capsys):
    changes = [f"{key}={value}" for key, value in yaml.safe_load(SWEEP)["set"].items()]
    words = ["ablate", "gradient", "--recipe", "quickdraw", "--out", tmp_path, "--episodes", 4, "--device", "cpu"]
    assert main([*map(str, words), "--engine", "ray", "--set", *changes]) == 0
    assert "constant: trained" in capsys.readouterr().err
