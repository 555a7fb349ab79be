"""The REST interface: what it does, and how it says no."""

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from web_server import drawing, files, png

from tapnet.data import preprocessing
from tapnet.inference import fit, open_predictor, read_task, write_task


def problem(response, status):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status
    return response.json()["detail"]


def test_predict_names_the_class_that_was_taught_of_files_and_of_json_with_base64(client, taught):
    images = drawing("circle", 10), drawing("cross", 11)
    body = {"images": [base64.b64encode(image).decode() for image in images]}
    for sent in ({"files": files(*images)}, {"json": body}):
        predictions = client.post(f"{taught}/predict", **sent).json()["predictions"]
        assert [prediction["label"] for prediction in predictions] == ["circle", "cross"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"images": [1] * 101}, 413, "at most 100 images"),
        ({"images": [1]}, 422, "not in base64"),
        ({"images": [], "other": 1}, 422, "files in base64"),
        ([], 422, "files in base64"),
    ],
)
def test_predict_says_what_json_it_expects(client, taught, body, status, words):
    assert words in problem(client.post(f"{taught}/predict", json=body), status)


@pytest.mark.parametrize("route", ["predict", "explain"])
def test_examples_decide_what_is_unknown(client, taught, route):
    stripes = np.full((120, 120), 255, np.uint8)
    stripes[20:100:8, 30:90] = 0
    for image, label in ((png(Image.fromarray(stripes)), "unknown"), (drawing("cross", 10), "cross")):
        answer = client.post(f"{taught}/{route}", params={"reject": "auto"}, files=files(image)).json()
        prediction = answer["predictions"][0] if route == "predict" else answer
        assert (prediction["label"], prediction["rejected"]) == (label, label == "unknown")


@pytest.mark.parametrize("route", ["predict", "explain"])
def test_unknown_by_examples_needs_two_of_each_class(client, taught, route):
    for example in client.get(taught).json()["classes"][0]["examples"][1:]:
        client.delete(f"{taught}/examples/{example['id']}")
    sent = files(drawing("circle", 10))
    assert "2 different images" in problem(client.post(f"{taught}/{route}?reject=auto", files=sent), 422)


def test_predict_says_unknown_below_the_threshold_which_is_a_probability_or_auto(client, taught):
    predict = lambda reject: client.post(f"{taught}/predict?reject={reject}", files=files(drawing("circle", 10)))  # noqa: E731
    assert predict("1").json()["predictions"][0]["label"] == "unknown"
    for reject in ("2", "nan", "often"):
        expected = f"reject: expected \"auto\" or a probability from 0 to 1, got '{reject}'."
        assert problem(predict(reject), 422) == expected


def test_ready_example_has_five_drawings_of_five_things(client, ready):
    assert [len(one["examples"]) for one in client.get(ready).json()["classes"]] == [5] * 5
    assert client.get(f"{ready}/map").json()["leave_one_out"]["accuracy"] > 0.6


def test_map_has_a_picture_of_the_task_without_an_image(client, taught):
    shown = client.get(f"{taught}/map").json()
    picture = shown["picture"]
    assert (len(picture["examples"]), picture["classes"], picture["query"]) == (6, [0, 1], None)
    assert sum(map(sum, shown["leave_one_out"]["confusion"])) == 6


def test_map_changes_with_method_and_dimension_which_methods_without_projection_do_not_have(client, taught):
    first = client.get(f"{taught}/map").json()
    client.patch(taught, json={"projection_dim": 8})
    assert client.get(f"{taught}/map").json()["projection_dim"] == 8
    detail = problem(client.patch(taught, json={"method": "centroid", "projection_dim": 8}), 422)
    assert "no options to be fitted with, got 'projection_dim'" in detail
    assert client.patch(taught, json={"method": "centroid"}).status_code == 200
    second = client.get(f"{taught}/map").json()
    assert (first["method"], second["method"], second["dimensions"]) == ("tapnet", "centroid", 0)
    problem(client.patch(taught, json={"projection_dim": 9}), 422)
    assert client.patch(taught, json={"method": None}).json()["projection_dim"] == 8  # back to TapNet it holds again


def test_explain_names_the_nearest_examples(client, taught):
    explanation = client.post(f"{taught}/explain", files=files(drawing("circle", 10))).json()
    assert explanation["label"] == explanation["nearest"][0]["label"] == "circle"
    picture = explanation["picture"]
    distances = [
        sum((a - b) ** 2 for a, b in zip(picture["query"], center, strict=True)) for center in picture["centers"]
    ]
    assert picture["classes"][distances.index(min(distances))] == 0  # circle, which is the answer


def test_undo_and_redo_walk_through_the_changes(client, taught):
    count = lambda task: sum(len(one["examples"]) for one in task["classes"])  # noqa: E731
    example = client.get(taught).json()["classes"][0]["examples"][0]["id"]
    assert count(client.delete(f"{taught}/examples/{example}").json()) == 5
    assert count(client.post(f"{taught}/undo").json()) == 6
    assert count(client.post(f"{taught}/redo").json()) == 5
    while client.get(taught).json()["can_undo"]:
        task = client.post(f"{taught}/undo").json()
    assert task["classes"] == []
    problem(client.post(f"{taught}/undo"), 409)


def test_task_goes_out_as_a_file_or_as_onnx_that_answers_the_same_and_the_file_in_again(client, taught, tmp_path):
    for form, name in (("onnx", "shapes.onnx"), ("file", "shapes.task")):
        content = client.get(f"{taught}/{form}").content
        (tmp_path / name).write_bytes(content)
        assert open_predictor(tmp_path / name).predict([drawing("cross", 20)])[0].label == "cross"
    copy = client.post("/v1/tasks/file", params={"name": "copy"}, content=content).json()
    assert [(one["name"], len(one["examples"])) for one in copy["classes"]] == [("circle", 3), ("cross", 3)]
    assert "--data-binary @FILE" in problem(client.post("/v1/tasks/file", files={"file": content}), 415)


def test_task_that_fit_made_by_default_is_taken_and_predicts_the_same(client, tmp_path):
    images = {shape: [drawing(shape, seed) for seed in range(3)] for shape in ("circle", "cross")}
    write_task(fit(images, "drawings"), tmp_path / "shapes.task")
    answer = client.post("/v1/tasks/file", content=(tmp_path / "shapes.task").read_bytes())
    assert answer.status_code == 201, answer.text
    sent = files(drawing("cross", 20))
    prediction = client.post(f"/v1/tasks/{answer.json()['id']}/predict", files=sent).json()["predictions"][0]
    expected = open_predictor(tmp_path / "shapes.task").predict([drawing("cross", 20)])[0]
    assert prediction["label"] == expected.label
    assert prediction["probability"] == pytest.approx(expected.probability, abs=1e-4)


def test_uploaded_task_of_a_network_elsewhere_is_refused(client, taught, tmp_path):
    (tmp_path / "a.task").write_bytes(client.get(f"{taught}/file").content)
    write_task(replace(read_task(tmp_path / "a.task"), network="/etc/passwd"), tmp_path / "b.task")
    detail = problem(client.post("/v1/tasks/file", content=(tmp_path / "b.task").read_bytes()), 422)
    assert "networks" in detail


def test_image_is_an_example_once_and_of_one_class(client, taught):
    own, other = (f"{taught}/classes/{one['id']}/examples" for one in client.get(taught).json()["classes"])
    assert client.post(own, files=files(drawing("circle", 0))).json()["added"] == []
    assert "'circle'" in problem(client.post(other, files=files(drawing("circle", 0))), 409)
    problem(client.post(f"{taught}/classes", json={"name": "CIRCLE"}), 409)  # names differ in more than case


@pytest.mark.parametrize("name", ["", "   ", "\n", "x" * 101, None, 5, "\ud800"])
def test_name_has_something_to_show(client, taught, name):
    body = json.dumps({"name": name})
    problem(client.post(f"{taught}/classes", content=body, headers={"content-type": "application/json"}), 422)


def test_what_is_not_there_is_404_and_a_class_that_prediction_needs_409(client, taught):
    for path in ("tasks/00", "tasks/00/map", "tasks/00/file", "nothing"):
        problem(client.get(f"/v1/{path}"), 404)
    assert problem(client.get("/v1/tasks/nope"), 404) == "There is no task 'nope'."
    assert problem(client.delete(f"{taught}/classes/nope"), 404) == "There is no class 'nope'."
    task = client.post("/v1/tasks", json={}).json()["id"]
    assert "2 classes" in problem(client.post(f"/v1/tasks/{task}/predict", files=files(drawing("circle", 1))), 409)


def test_metrics_count_requests(client, taught):
    client.post(f"{taught}/predict", files=files(drawing("circle", 10)))
    text = client.get("/v1/metrics").text
    assert re.search(r'tapnet_requests_total{method="POST",route="/v1/tasks/{task}/predict",status="200"} [1-9]', text)


def test_deleted_task_is_gone(client, taught):
    assert client.delete(taught).status_code == 204
    problem(client.get(taught), 404)
    assert taught.removeprefix("/v1/tasks/") not in client.get("/v1/tasks").text


def test_first_photographs_are_decoded_to_choose_the_network_and_once_more_for_it(client, monkeypatch):
    decoded, real = [], preprocessing._eight_bits
    monkeypatch.setattr(preprocessing, "_eight_bits", lambda image: decoded.append(image) or real(image))
    task = client.post("/v1/tasks", json={"name": "birds"}).json()
    added = client.post(f"/v1/tasks/{task['id']}/classes", json={"name": "robin"}).json()["classes"][0]["id"]
    pixels = np.random.default_rng(0).integers(0, 256, (3, 48, 40, 3), np.uint8)
    sent = files(*(png(Image.fromarray(photograph)) for photograph in pixels))
    answer = client.post(f"/v1/tasks/{task['id']}/classes/{added}/examples", files=sent)
    assert answer.json()["task"]["network"] == "photos"
    assert len(decoded) == 2 * len(pixels)
