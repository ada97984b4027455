"""Webhooks of GitHub as they come in."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.runners.jobs import JobUpdate
from gpuyard.runners.records import JobState
from gpuyard.runners.webhook import HookRefusedError, delivery_of, job_update, secrets_of, signed_by

EXAMPLES = json.loads((Path(__file__).parents[2] / "support" / "octokit" / "examples.json").read_text())
BODY = b'{"action": "queued"}'
HEADERS = {
    "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
    "x-github-event": "workflow_job",
    "content-type": "application/json",
}


def sign(secret: bytes, body: bytes) -> str:
    return "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()


def read(payload: dict[str, Any], event: str = "workflow_job") -> JobUpdate | None:
    return job_update(event, json.dumps(payload).encode(), "octo-org")


def test_any_of_several_secrets_is_right() -> None:
    secrets = {"one": (b"old", b"new"), "two": (b"other",), "none": (), "empty": (b"",)}
    assert signed_by(BODY, sign(b"old", BODY), secrets) == ["one"]
    assert signed_by(BODY, sign(b"new", BODY), secrets) == ["one"]
    assert signed_by(BODY, sign(b"other", BODY), secrets) == ["two"]
    assert signed_by(BODY, sign(b"", BODY), secrets) == []
    assert signed_by(BODY + b" ", sign(b"new", BODY), secrets) == []
    assert signed_by(BODY, sign(b"new", BODY), {"one": (b"new",), "two": (b"new",)}) == ["one", "two"]


def test_what_github_documents_as_its_example() -> None:
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert signed_by(b"Hello, World!", signature, {"a": (b"It's a Secret to Everybody",)}) == ["a"]


@pytest.mark.parametrize(
    "signature",
    ["", "sha256=", "sha1=" + "a" * 40, "sha256=" + "é" * 64, "sha256=" + "a" * 63, sign(b"s", BODY).upper(), "a" * 71],
)
def test_other_signatures_are_nobodys(signature: str) -> None:
    assert signed_by(BODY, signature, {"a": (b"s",)}) == []


@given(st.binary(max_size=50), st.text(max_size=80))
def test_no_text_passes_for_a_signature(body: bytes, signature: str) -> None:
    assert signed_by(body, signature, {"a": (b"a secret",)}) == []


def test_secrets_are_lines() -> None:
    assert secrets_of("# the old one\nfirst \n\n  second\r\n") == (b"first", b"second")
    assert secrets_of("") == ()


def test_headers() -> None:
    assert delivery_of(HEADERS) == (HEADERS["x-github-delivery"], "workflow_job")
    assert delivery_of(HEADERS | {"content-type": "Application/JSON; charset=utf-8"})[1] == "workflow_job"
    for wrong in ({"x-github-delivery": ""}, {"x-github-event": "Workflow Job"}, {"x-github-delivery": "a" * 65}):
        with pytest.raises(HookRefusedError, match="X-GitHub") as error:
            delivery_of(HEADERS | wrong)
        assert error.value.status == 400
    with pytest.raises(HookRefusedError, match="application/json") as error:
        delivery_of(HEADERS | {"content-type": "application/x-www-form-urlencoded"})
    assert error.value.status == 415


def test_payloads_that_github_has_sent() -> None:
    updates = [read(payload) for payload in EXAMPLES["workflow_job"]]
    assert all(updates)
    assert [update.state.value for update in updates if update] == [
        "running", "completed", "completed", "running", "running", "queued", "held", "held",
    ]  # fmt: skip
    first = updates[0]
    assert first is not None
    assert (first.repository, first.runner, first.labels) == (
        "octo-org/example-workflow",
        "my runner",
        ("gpu", "db-app", "dc-03"),
    )
    waiting = updates[-1]
    assert waiting is not None
    assert (waiting.runner, waiting.conclusion, waiting.queued is not None) == ("", "", True)


def test_what_is_about_something_else_says_nothing() -> None:
    assert read(EXAMPLES["ping"][0], "ping") is None
    assert job_update("push", b"not even JSON", "octo-org") is None
    strange = EXAMPLES["workflow_job"][0] | {"action": "levitated"}
    strange["workflow_job"] = strange["workflow_job"] | {"status": "floating"}
    assert read(strange) is None


def test_an_id_is_its_hosts() -> None:
    body = json.dumps(EXAMPLES["workflow_job"][0]).encode()
    update = job_update("workflow_job", body, "octo-org", host="ghe.example.org")
    assert update is not None
    assert update.id == f"ghe.example.org/{EXAMPLES['workflow_job'][0]['workflow_job']['id']}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 50_000,
        b'{"workflow_job": {"id": 5}, "repository": {"full_name": "../../etc"}}',
        b'{"workflow_job": {"id": "5"}, "repository": {"full_name": "a/b"}}',
        b'{"workflow_job": null, "repository": null}',
    ],
)
def test_bodies_that_are_refused(body: bytes) -> None:
    with pytest.raises(HookRefusedError) as error:
        job_update("workflow_job", body, "octo-org")
    assert error.value.status == 400


def test_missing_and_null_fields_are_borne() -> None:
    payload: dict[str, Any] = json.loads(json.dumps(EXAMPLES["workflow_job"][5]))
    for key in list(payload["workflow_job"]):
        if key in {"id", "status"}:
            continue
        without = {k: v for k, v in payload["workflow_job"].items() if k != key}
        assert read(payload | {"workflow_job": without}) is not None
        assert read(payload | {"workflow_job": without | {key: None}}) is not None
    assert read({"action": "completed", "workflow_job": {"id": 5}, "repository": {"full_name": "a/b"}}) == JobUpdate(
        "github.com/5", "a/b", "octo-org", JobState.COMPLETED
    )


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with contextlib.suppress(HookRefusedError):
        job_update("workflow_job", body, "octo-org")
