"""Malformed requests: generated from the OpenAPI description, mutated bodies and corrupt bytes."""

import json
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import CHECKS

from support.server_process import ServerProcess

GOOD = {
    "trajectory_ids": ["t", "u"],
    "actions": ["<python>print(1)</python>", "x"],
    "extra_fields": [{"call_id": "1", "stdin": "x"}, {"call_id": "1"}],
    "finish": [False, True],
    "is_last_step": [True, False],
}

ODD = [
    None, True, 0, -1, 2**70, 1e308, "", "\x00", "\ud800", "\U0010ffff", "t" * 100_000, [], {}, [[]], [None], {"": {}},
    ["a", 1], [{"finish": "yes"}], [{"call_id": {}}], [{"call_id": "x" * 10_000}], [{"call_id": -5}, {"call_id": True}],
    float("nan"), float("inf"),
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log: Path = tmp_path_factory.mktemp("malformed") / "server.log"
    server = ServerProcess(log, "--tool_type", "python_code,bash_terminal", "--max_concurrent_requests", "256")
    yield server.wait_until_ready()
    server.close()


# Like verl-tool's server, turnmill's ignores unknown fields and accepts 1 as true.
LENIENT = {"negative_data_rejection", "positive_data_acceptance"}


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_the_api_conforms_to_its_openapi_description(server: ServerProcess, mode: str):
    schema = schemathesis.openapi.from_url(str(server.http.base_url.join("/openapi.json")))
    lenient = [check for check in CHECKS.get_all() if check.__name__ in LENIENT]
    operations = [result.ok() for result in schema.get_all_operations()]

    for operation in operations:

        @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode[mode]))
        def call(case: schemathesis.Case) -> None:
            for header in ("X-Deadline-Seconds", "X-Answer-Seconds"):
                if mode == "POSITIVE" or is_short(str(case.headers.get(header))):
                    # A time that is too short is rightly answered with 503.
                    case.headers.pop(header, None)
            case.call_and_validate(excluded_checks=lenient)

        with suppress(Unsatisfiable):  # A request without parameters cannot be invalid.
            call()
    assert {operation.path for operation in operations} == {"/get_observation", "/health", "/readyz", "/metrics"}


def is_short(deadline: str) -> bool:
    try:
        return 0 < float(deadline) < 1
    except ValueError:
        return False


def mutated(seed: int) -> Any:
    """Return a valid body with one or two mutations."""
    chance = random.Random(seed)
    body: Any = json.loads(json.dumps(GOOD))
    for _ in range(chance.randint(1, 2)):
        name = chance.choice([*GOOD, "unknown"])
        value = chance.choice(ODD)
        if isinstance(body.get(name), list) and chance.random() < 0.5:
            body[name][chance.randrange(len(body[name]))] = value
        elif chance.random() < 0.2:
            body.pop(name, None)
        else:
            body[name] = value
        if not body:
            break
    return body


def test_a_malformed_body_is_answered_or_refused(server: ServerProcess):
    statuses = {post(server, json.dumps(mutated(seed)).encode()) for seed in range(300)}

    # 409: the same name of a call with another action.
    assert statuses == {200, 409, 422}


def test_corrupt_bytes_are_refused(server: ServerProcess):
    chance = random.Random(0)
    good = json.dumps(GOOD).encode()
    for _ in range(200):
        body = bytearray(good)
        for _ in range(chance.randint(1, 8)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        assert post(server, bytes(body[: chance.randint(0, len(body))])) in (200, 422)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00" * 1000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /get_observation HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{",
        b"POST /get_observation HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /get_observation HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /get_observation HTTP/1.1\r\nHost: x\r\nContent-Type: \x80\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
def test_the_server_survives_connections_that_do_not_speak_http(server: ServerProcess, sent: bytes):
    url = server.http.base_url
    with socket.create_connection((url.host, url.port), timeout=10) as connection:
        connection.sendall(sent)

    assert server.http.get("/health").status_code == 200
    assert server.process.poll() is None


def post(server: ServerProcess, body: bytes) -> int:
    return server.http.post("/get_observation", content=body).status_code
