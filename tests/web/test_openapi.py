"""The service against its own description: no 5xx, and no answer that the description does not have."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tapnet.web.app import create_app
from tapnet.web.settings import Limits, Settings

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    limits = Limits(rate=1e6, tasks=100_000)
    app = create_app(Settings(store=str(tmp_path_factory.mktemp("store")), limits=limits))
    return schemathesis.openapi.from_asgi("/v1/openapi.json", app, headers={"host": "127.0.0.1"})


schema = schemathesis.pytest.from_fixture("described")


@schema.parametrize()
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_service_answers_as_described(case):
    case.call_and_validate(checks=CHECKS, headers={"host": "127.0.0.1"})
