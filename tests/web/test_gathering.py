"""Requests that wait go through together, and each gets its own answer."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from web_server import drawing, files

from tapnet.web import gathering
from tapnet.web.answering import Question, answer_questions
from tapnet.web.gathering import Gatherer
from tapnet.web.problems import Problem
from tapnet.web.uploads import Upload


def ask_all(questions, sizes=None):
    """Return the answers to questions that were all asked while two batches kept the pool busy, and the batches."""
    batches, free = [], threading.Event()

    def answer(batch):
        batches.append(batch)
        free.wait(60)
        return [ValueError(each) if each == "bad" else f"{each}!" for each in batch]

    async def run():
        with ThreadPoolExecutor(4) as pool:
            gatherer = Gatherer(pool, answer)
            first = [
                asyncio.ensure_future(gatherer.ask(f"first {n}", gathering.SECOND_BYTES))
                for n in range(gathering.BATCHES)
            ]
            await asyncio.sleep(0)
            others = [asyncio.ensure_future(gatherer.ask(*pair)) for pair in zip(questions, sizes, strict=True)]
            await asyncio.sleep(0)
            free.set()
            await asyncio.gather(*first)
            return await asyncio.gather(*others, return_exceptions=True)

    sizes = sizes or [1] * len(questions)
    return asyncio.run(run()), [batch for batch in batches if not batch[0].startswith("first")]


def test_questions_that_wait_are_answered_together():
    assert ask_all(["a", "b", "c"]) == (["a!", "b!", "c!"], [["a", "b", "c"]])


def test_bad_question_spoils_no_other():
    answers, _ = ask_all(["a", "bad", "c"])
    assert (answers[0], answers[2]) == ("a!", "c!")
    assert isinstance(answers[1], ValueError)


def test_batches_are_bounded():
    _, batches = ask_all(["a", "b", "c"], [gathering.MOST_BYTES // 2, gathering.MOST_BYTES, 1])
    assert sorted(batches) == [["a"], ["b"], ["c"]] or sorted(batches) == [["a"], ["b", "c"]]
    many = [str(n) for n in range(2 * gathering.MOST_REQUESTS)]
    assert {len(batch) for batch in ask_all(many)[1]} == {gathering.MOST_REQUESTS}


@pytest.mark.parametrize(("size", "beside"), [(1, 0), (gathering.SECOND_BYTES // 2, 1)])
def test_second_batch_starts_beside_the_first_only_for_many_bytes(size, beside):
    batches, free = [], threading.Event()

    def answer(batch):
        batches.append(batch)
        free.wait(60)
        return batch

    async def run():
        with ThreadPoolExecutor(4) as pool:
            gatherer = Gatherer(pool, answer)
            asked = [asyncio.ensure_future(gatherer.ask(n, size)) for n in range(3)]
            await asyncio.sleep(0)
            begun = gatherer._running
            free.set()
            assert await asyncio.gather(*asked) == [0, 1, 2]
            return begun

    assert asyncio.run(run()) == 1 + beside
    assert sorted(batches) == [[0], [1, 2]]


def test_large_question_does_not_wait_for_the_batches():
    large, batches = ask_all(["large", "a"], [gathering.MOST_BYTES + 1, 1])
    assert large == ["large!", "a!"]
    assert ["large"] in batches


def test_failure_of_a_batch_reaches_everybody_in_it():
    async def run():
        with ThreadPoolExecutor(1) as pool:
            gatherer = Gatherer(pool, lambda _: 1 / 0)
            return await asyncio.gather(*(gatherer.ask(n, 1) for n in range(4)), return_exceptions=True)

    assert [type(each) for each in asyncio.run(run())] == [ZeroDivisionError] * 4


@pytest.fixture
def question(client):
    """Makes a question of images, as a form."""

    def make(task, *images, top=5, reject=0.0):
        request = client.build_request("POST", "/", files=files(*images))
        return Question(task, Upload(request.headers["content-type"], request.read()), top, reject)

    return make


def test_requests_of_one_batch_get_the_answers_that_they_get_alone(client, taught, question):
    task, engine = taught.split("/")[-1], client.app.state.services.engine
    ready = client.post("/v1/tasks", json={"example": True}).json()["id"]
    questions = [
        question(task, drawing("circle", 20)),
        question(ready, drawing("circle", 21), drawing("cross", 22), top=2),
        question(task, drawing("cross", 23), drawing("cross", 24), reject=1.0),
    ]
    together = answer_questions(engine, questions)
    alone = [answer_questions(engine, [each])[0] for each in questions]
    assert [each.images for each in together] == [1, 2, 2]
    for one, other in zip(together, alone, strict=True):
        assert as_labels(one) == as_labels(other)
    assert as_labels(together[2]) == [("unknown", ["cross", "circle"])] * 2


def as_labels(answer):
    found = json.loads(answer.content)["predictions"]
    return [(each["label"], [other["label"] for other in each["ranked"]]) for each in found]


def test_broken_image_is_refused_without_the_other_requests_of_its_batch(client, taught, question):
    task, engine = taught.split("/")[-1], client.app.state.services.engine
    good, broken, missing = answer_questions(
        engine,
        [question(task, drawing("cross", 20)), question(task, b"no image"), question("ab", drawing("cross", 20))],
    )
    assert as_labels(good)[0][0] == "cross"
    assert "cannot be read" in str(broken)
    assert isinstance(missing, Problem)
    assert missing.status == 404
