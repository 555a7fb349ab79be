"""The service against its own description: no 5xx, and no answer that the description does not have."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tapnet.web.app import create_app
from tapnet.web.settings import Limits, Settings

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
HOST = {"host": "127.0.0.1"}
SEARCH = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def described(tmp_path):
    app = create_app(Settings(store=str(tmp_path / "store"), limits=Limits(tasks=100_000)))
    return schemathesis.openapi.from_asgi("/v1/openapi.json", app, headers=HOST)


@pytest.mark.parametrize("about", ["anything", "a task that is there"])
def test_service_answers_as_described(described, about):
    """Every operation; about a task that is there, with the ids of the ready example in the paths."""
    known, operations = {}, [operation.ok() for operation in described.get_all_operations()]
    assert len(operations) >= 20
    if about != "anything":
        create = described["/v1/tasks"]["POST"].Case(body={"example": True}, media_type="application/json")
        task = create.call(headers=HOST).json()
        class_id, example = task["classes"][0]["id"], task["classes"][-1]["examples"][0]["id"]
        known = {"task": task["id"], "class_id": class_id, "example": example}
        operations = [operation for operation in operations if operation.label != "DELETE /v1/tasks/{task}"]
    for operation in operations:
        once = known and operation.method == "get"  # nothing is left to guess

        @settings(SEARCH, max_examples=1 if once else 10)
        @given(case=operation.as_strategy())
        def answers(case):
            for name in set(case.path_parameters or ()) & set(known):
                case.path_parameters[name] = known[name]
            case.call_and_validate(checks=CHECKS, headers=HOST, timeout=600)

        answers()


def test_description_says_that_images_in_json_are_base64(client):
    described = client.get("/v1/openapi.json").json()["paths"]["/v1/tasks/{task}/predict"]["post"]["requestBody"]
    images = described["content"]["application/json"]["schema"]["properties"]["images"]
    assert images["items"] == {"type": "string", "format": "byte", "contentEncoding": "base64"}
