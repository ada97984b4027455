"""Webhooks of GitHub: kept before they are answered, and cheap to refuse."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.database.errors import StoreError
from gpuyard.runners.hook_secrets import LOOK_EVERY, HookSecrets
from gpuyard.runners.records import HookDelivery
from gpuyard.runners.web import github_webhook, group_commit
from gpuyard.runners.web.github_webhook import Intake
from gpuyard.runners.web.group_commit import GroupCommit
from gpuyard.runners.webhook import MOST_BYTES
from gpuyard.web import problems
from gpuyard.web.settings import PortalSettings
from gpuyard.web.unknown_callers import WRONG
from tests.support.ledgers import ADA, NOON
from tests.support.runner_portals import (
    HOOK,
    OLD_SECRET,
    SECRET,
    RunnerPortal,
    job_hook,
    runner_portal,
    signed,
    site_runners,
)

BODY = job_hook()


@pytest.fixture
def portal(tmp_path: Path) -> RunnerPortal:
    return runner_portal(tmp_path)


def client(portal: RunnerPortal, address: str = "192.0.2.1") -> TestClient:
    return TestClient(portal.app, raise_server_exceptions=False, client=(address, 4711))


def kept(portal: RunnerPortal) -> list[tuple[str, str]]:
    return [(delivery.scope, delivery.id) for delivery in portal.runners.deliveries(NOON)]


def test_what_is_answered_is_in_the_database(tmp_path: Path) -> None:
    calls: list[None] = []
    portal = runner_portal(tmp_path, wake=lambda: calls.append(None))
    answer = client(portal).post(HOOK, content=BODY, headers=signed(BODY, guid="guid-1"))
    assert (answer.status_code, answer.text, len(calls)) == (202, "kept\n", 1)
    (delivery,) = portal.runners.deliveries(NOON)
    assert (delivery.id, delivery.scope, delivery.event) == ("guid-1", "acme", "workflow_job")
    assert (delivery.received, delivery.body, delivery.tries) == (NOON, BODY, 0)


def test_a_redelivery_is_taken_and_is_the_same_delivery(portal: RunnerPortal) -> None:
    for _ in range(2):
        answer = client(portal).post(HOOK, content=BODY, headers=signed(BODY, guid="guid-1"))
        assert answer.status_code == 202
    assert kept(portal) == [("acme", "guid-1")]


def test_each_secret_of_the_file_is_right(portal: RunnerPortal) -> None:
    for secret in (SECRET, OLD_SECRET):
        assert client(portal).post(HOOK, content=BODY, headers=signed(BODY, secret)).status_code == 202
    comment = signed(BODY, "# new one first")
    assert client(portal).post(HOOK, content=BODY, headers=comment).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        signed(BODY, "wrong"),
        signed(BODY + b" "),
        signed(BODY, ""),
        signed(BODY) | {"X-Hub-Signature-256": ""},
        signed(BODY) | {"X-Hub-Signature-256": "sha256=" + "0" * 64},
        signed(BODY) | {"X-Hub-Signature-256": signed(BODY)["X-Hub-Signature-256"].upper()},
        {},
    ],
)
def test_a_stranger_learns_nothing(portal: RunnerPortal, headers: dict[str, str]) -> None:
    answer = client(portal).post(HOOK, content=BODY, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "unsigned")
    assert "acme" not in answer.text
    assert kept(portal) == []


def test_a_cookie_changes_nothing(portal: RunnerPortal) -> None:
    browser = portal.browser(ADA)
    del browser.client.headers["X-CSRF-Token"]
    assert browser.client.post(HOOK, content=BODY, headers=signed(BODY)).status_code == 202
    assert browser.client.post(HOOK, content=BODY, headers=signed(BODY, "wrong")).status_code == 401


def test_what_is_too_long_is_not_taken(portal: RunnerPortal) -> None:
    long = b"x" * (MOST_BYTES + 1)

    assert client(portal).post(HOOK, content=long, headers=signed(long)).status_code == 413
    assert client(portal).post(HOOK, content=iter([long]), headers=signed(long)).status_code == 413
    fits = BODY.ljust(MOST_BYTES)
    assert client(portal).post(HOOK, content=fits, headers=signed(fits)).status_code == 202


@pytest.mark.parametrize("length", ["-1", "x", "9" * 20, "1_0"])
def test_a_length_that_is_none(portal: RunnerPortal, length: str) -> None:
    answer = client(portal).post(HOOK, content=BODY, headers=signed(BODY) | {"Content-Length": length})
    assert answer.status_code in (400, 413)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"X-GitHub-Event": "ping"}, 200),
        ({"X-GitHub-Event": "push"}, 200),
        ({"X-GitHub-Event": ""}, 400),
        ({"X-GitHub-Delivery": "../x"}, 400),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_who_knows_the_secret_is_told_what_is_wrong(portal: RunnerPortal, change: dict[str, str], status: int) -> None:
    assert client(portal).post(HOOK, content=BODY, headers=signed(BODY) | change).status_code == status
    assert kept(portal) == []


def test_of_enrolments_with_one_secret_it_is_the_repositorys(tmp_path: Path) -> None:
    portal = runner_portal(tmp_path, organizations=("acme", "other"))
    for number, (repository, status) in enumerate((("other/x", 202), ("ACME/x", 202), ("third/x", 200), ("", 200))):
        body = job_hook(repository=repository)
        answer = client(portal).post(HOOK, content=body, headers=signed(body, guid=f"guid-{number}"))
        assert answer.status_code == status
    assert sorted(kept(portal)) == [("acme", "guid-1"), ("other", "guid-0")]
    assert client(portal).post(HOOK, content=b"{", headers=signed(b"{")).status_code == 400


def test_wrong_signatures_are_counted_by_place(portal: RunnerPortal) -> None:
    stranger, github = client(portal, "203.0.113.9"), client(portal, "192.0.2.1")
    answers = [stranger.post(HOOK, content=BODY, headers=signed(BODY, "wrong")) for _ in range(WRONG + 5)]
    assert [answer.status_code for answer in answers] == [401] * WRONG + [429] * 5
    assert int(answers[-1].headers["Retry-After"]) >= 1
    assert stranger.post(HOOK, content=BODY, headers=signed(BODY)).status_code == 429
    for _ in range(WRONG + 5):
        assert github.post(HOOK, content=BODY, headers=signed(BODY)).status_code == 202, (
            "GitHub's bursts count for none"
        )
    assert client(portal, "203.0.113.10").post(HOOK, content=BODY, headers=signed(BODY)).status_code == 202


def test_behind_a_gateway_strangers_are_told_apart(tmp_path: Path) -> None:
    portal = runner_portal(tmp_path, settings=PortalSettings(trusted_gateways=("192.0.2.99",)))
    gateway = client(portal, "192.0.2.99")
    for _ in range(10 * WRONG):  # one more is allowed every two seconds, and the machine may be slow
        last = gateway.post(HOOK, content=BODY, headers=signed(BODY, "wrong") | {"X-Forwarded-For": "203.0.113.9"})
        if last.status_code == 429:
            break
    assert last.status_code == 429
    github = signed(BODY) | {"X-Forwarded-For": "192.0.2.1"}
    assert gateway.post(HOOK, content=BODY, headers=github).status_code == 202
    for _ in range(WRONG + 1):  # a gateway that does not say for whom it asks
        last = gateway.post(HOOK, content=BODY, headers=signed(BODY, "wrong"))
    assert last.status_code == 401


def test_what_cannot_be_kept_is_not_taken() -> None:
    def full(deliveries: Sequence[HookDelivery]) -> None:
        raise StoreError("the disk is full")

    app, calls = FastAPI(), list[None]()
    problems.install(app)
    intake = Intake(full, lambda: {"acme": [SECRET.encode()]}, [], lambda: NOON, lambda: calls.append(None))
    github_webhook.install(app, intake)
    answer = TestClient(app, raise_server_exceptions=False).post(HOOK, content=BODY, headers=signed(BODY))
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert "disk" not in answer.text
    assert (calls, intake.outcomes["failed"], intake.outcomes["kept"]) == ([], 1, 0)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.binary(max_size=200) | st.sampled_from([b"[" * 50_000, b'{"repository": {"full_name": 3}}', b"\xff"]),
    event=st.sampled_from(["workflow_job", "ping"]) | st.text(st.characters(min_codepoint=33, max_codepoint=126)),
    signature=st.none() | st.binary(max_size=40).map(bytes.hex).map(lambda text: f"sha256={text}"),
)
def test_nothing_that_is_sent_is_a_bug_of_ours(
    portal: RunnerPortal, body: bytes, event: str, signature: str | None
) -> None:
    headers = signed(body, event=event)
    headers |= {"X-Hub-Signature-256": signature} if signature is not None else {}
    status = client(portal, "127.0.0.1").post(HOOK, content=body, headers=headers).status_code
    assert status in ((200, 202, 400) if signature is None else (401,))


# Group commit.


def written_together(count: int, write: Callable[[Sequence[int]], None], most: int = 0) -> list[BaseException | None]:
    """What became of so many that are added at once."""

    async def run() -> list[BaseException | None]:
        commits = GroupCommit(write)
        outcomes = await asyncio.gather(*(commits.add(number) for number in range(count)), return_exceptions=True)
        assert commits.waiting == 0
        return outcomes

    return asyncio.run(run())


def test_what_comes_during_a_write_shares_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "MOST", 40)
    batches: list[Sequence[int]] = []
    assert written_together(100, batches.append) == [None] * 100
    assert [number for batch in batches for number in batch] == list(range(100)), "in order, each once"
    assert [len(batch) for batch in batches] == [40, 40, 20]


def test_a_write_that_fails_is_told_to_all_who_were_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "MOST", 2)

    def write(batch: Sequence[int]) -> None:
        if 2 in batch:
            raise StoreError("no")

    outcomes = written_together(6, write)
    assert [isinstance(outcome, StoreError) for outcome in outcomes] == [False, False, True, True, False, False]


def test_who_goes_away_keeps_back_nobody() -> None:
    batches: list[Sequence[int]] = []

    async def run() -> None:
        commits = GroupCommit(batches.append)
        gone, stays = asyncio.create_task(commits.add(1)), asyncio.create_task(commits.add(2))
        await asyncio.sleep(0)
        gone.cancel()
        await stays

    asyncio.run(run())
    assert [number for batch in batches for number in batch] == [1, 2]


# Secrets.


def test_a_secret_can_be_replaced_while_it_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site, time = site_runners(tmp_path), [0.0]
    path = tmp_path / "webhook-secrets"
    secrets = HookSecrets(site.enrolments, lambda: time[0])
    assert secrets() == {"acme": (SECRET.encode(), OLD_SECRET.encode())}
    path.write_text("new\n")
    os.utime(path, ns=(1, 1))
    assert len(secrets()["acme"]) == 2, "not at every request"
    time[0] += LOOK_EVERY
    assert secrets() == {"acme": (b"new",)}
    path.unlink()
    time[0] += LOOK_EVERY
    assert secrets() == {"acme": (b"new",)}, "as long as it cannot be read"
    time[0] += LOOK_EVERY
    secrets()
    path.write_bytes(b"\xff")
    time[0] += LOOK_EVERY
    secrets()
    path.write_text("# none\n")
    time[0] += LOOK_EVERY
    assert secrets() == {"acme": ()}
    messages = [record.getMessage().replace(str(path), "FILE") for record in caplog.records]
    assert messages == [
        "acme: FILE with the secrets of its webhook cannot be read: No such file or directory",
        "acme: FILE with the secrets of its webhook cannot be read: it is not text",
        "acme: FILE has no secret in it; its webhooks are refused",
    ]
    assert "new" not in caplog.text
