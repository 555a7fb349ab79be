"""Requests that wait go through together, and each gets its own answer; too many are refused."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from web_server import drawing, files

from tapnet.web import batcher
from tapnet.web.batcher import Batcher
from tapnet.web.bodies import Upload
from tapnet.web.engine import Engine, Question
from tapnet.web.problems import Problem


def ask_all(questions, sizes, first=batcher.BATCHES):
    """Return the answers to questions that were all asked while so many batches kept the pool busy, and the batches."""
    batches, free = [], threading.Event()

    def answer(batch):
        batches.append(batch)
        free.wait(60)
        return [ValueError(question) if question == "bad" else f"{question}!" for question in batch]

    async def run():
        with ThreadPoolExecutor(4) as pool:
            asked = Batcher(pool, answer)
            busy = [asyncio.ensure_future(asked.ask(f"first {n}", batcher.SECOND_BYTES)) for n in range(first)]
            await asyncio.sleep(0)
            others = [asyncio.ensure_future(asked.ask(*pair)) for pair in zip(questions, sizes, strict=True)]
            await asyncio.sleep(0.1)
            begun = len(batches)
            free.set()
            await asyncio.gather(*busy)
            return await asyncio.gather(*others, return_exceptions=True), begun

    answers, begun = asyncio.run(run())
    return answers, [batch for batch in batches if not batch[0].startswith("first")], begun


def test_questions_that_wait_are_answered_together_and_a_bad_one_spoils_no_other():
    assert ask_all(["a", "b", "c"], [1, 1, 1])[:2] == (["a!", "b!", "c!"], [["a", "b", "c"]])
    answers, _, _ = ask_all(["a", "bad", "c"], [1, 1, 1])
    assert (answers[0], answers[2]) == ("a!", "c!")
    assert isinstance(answers[1], ValueError)


def test_batches_are_bounded_and_a_large_question_does_not_wait_for_them():
    _, batches, _ = ask_all(["a", "b", "c"], [batcher.MOST_BYTES // 2, batcher.MOST_BYTES, 1])
    assert sorted(batches) == [["a"], ["b"], ["c"]] or sorted(batches) == [["a"], ["b", "c"]]
    count = 2 * batcher.MOST_REQUESTS
    assert {len(batch) for batch in ask_all(list(map(str, range(count))), [1] * count)[1]} == {batcher.MOST_REQUESTS}
    answers, batches, _ = ask_all(["large", "a"], [batcher.MOST_BYTES + 1, 1])
    assert answers == ["large!", "a!"]
    assert ["large"] in batches


@pytest.mark.parametrize(("size", "begun"), [(1, 1), (batcher.SECOND_BYTES // 2, 2)])
def test_second_batch_starts_beside_the_first_only_for_many_bytes(size, begun):
    answers, batches, at_once = ask_all(["a", "b"], [size] * 2, first=1)
    assert (answers, batches, at_once) == (["a!", "b!"], [["a", "b"]], begun)


def test_failure_of_a_batch_reaches_everybody_in_it():
    async def run():
        with ThreadPoolExecutor(1) as pool:
            asked = Batcher(pool, lambda _: 1 / 0)
            return await asyncio.gather(*(asked.ask(n, 1) for n in range(4)), return_exceptions=True)

    assert [type(error) for error in asyncio.run(run())] == [ZeroDivisionError] * 4


@pytest.fixture
def question(client):
    """Makes a question of images, as a form."""

    def make(address, *images, top=5, reject=0.0):
        request = client.build_request("POST", "/", files=files(*images))
        upload = Upload(request.headers["content-type"], request.read())
        return Question(address.removeprefix("/v1/tasks/"), upload, top, reject)

    return make


def as_labels(answer):
    predictions = json.loads(answer)["predictions"]
    return [(row["label"], [ranked["label"] for ranked in row["ranked"]]) for row in predictions]


def test_requests_of_one_batch_pass_the_network_once_and_get_the_answers_that_they_get_alone(
    client, taught, ready, question, monkeypatch
):
    engine, passed, embed = client.app.state.engine, [], Engine.embed
    monkeypatch.setattr(Engine, "embed", lambda *args: passed.append(len(args[-1])) or embed(*args))
    questions = [
        question(taught, drawing("circle", 20)),
        question(ready, drawing("circle", 21), drawing("cross", 22), top=2),
        question(taught, drawing("cross", 23), drawing("cross", 24), reject=1.0),
    ]
    together = list(map(as_labels, engine.answer(questions)))
    assert passed == [5]
    assert together == [as_labels(engine.answer([alone])[0]) for alone in questions]
    assert list(map(len, together)) == [1, 2, 2]
    assert together[2] == [("unknown", ["cross", "circle"])] * 2


def test_broken_image_is_refused_without_the_other_requests_of_its_batch(client, taught, question):
    good, broken, missing = client.app.state.engine.answer(
        [question(taught, drawing("cross", 20)), question(taught, b"no image"), question("ab", drawing("cross", 20))]
    )
    assert as_labels(good)[0][0] == "cross"
    assert "cannot be read" in str(broken)
    assert isinstance(missing, Problem)
    assert missing.status_code == 404


def test_queue_is_bounded(client):
    engine, free = client.app.state.engine, threading.Event()

    async def fill():
        first = [asyncio.ensure_future(engine.run(free.wait)) for _ in range(engine.settings.limits.queue)]
        await asyncio.sleep(0)
        with pytest.raises(Problem) as refused:
            await engine.run(free.wait)
        free.set()
        await asyncio.gather(*first)
        return refused.value

    refused = asyncio.run(fill())
    assert (refused.status_code, refused.headers) == (503, {"Retry-After": "1"})
