"""A host that works through the portal's orders: what it writes down, what it says, and a kill at every moment."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from gpuyard.host import scrub_journal
from gpuyard.host.portal_client import PortalAwayError
from gpuyard.host.scrub_unit import ScrubUnit, in_a_process
from gpuyard.model.scrub import ScrubOrder, ScrubOutcome, ScrubResult
from tests.support.kernel import LostPower, ModelHost
from tests.support.scrubbing import LONE, ScrubHost

PATH = "/v1/hosts/gpu-server/scrubs"


class ModelPortal:
    """Asks for each of its orders until there is an answer to it, as the portal does."""

    def __init__(self, *orders: ScrubOrder) -> None:
        self.open = list(orders)
        self.results: list[dict[str, Any]] = []
        self.answer: dict[str, Any] | None = None
        self.loses_answers = 0

    def post(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        assert path == PATH
        self.results += document["results"]
        answered = {result["order"] for result in document["results"]}
        self.open = [order for order in self.open if order.id not in answered]
        if self.loses_answers:
            self.loses_answers -= 1
            raise PortalAwayError("timed out")
        return self.answer or {"orders": [{"id": order.id, "address": order.address} for order in self.open]}

    def outcomes(self, order: str) -> list[str]:
        return [result["outcome"] for result in self.results if result["order"] == order]


class Work:
    """In the place of a scrub."""

    def __init__(self, host: ModelHost) -> None:
        self.host, self.done = host, list[str]()
        self.widths: list[Mapping[str, int]] = []

    def __call__(self, order: ScrubOrder, widths: Mapping[str, int]) -> ScrubResult:
        self.host._change()  # a moment at which power can be lost, too
        self.done.append(order.id)
        self.widths.append(dict(widths))
        return ScrubResult(order.id, order.address, ScrubOutcome.CLEAN, functions=(order.address,))


def unit(host: ModelHost, portal: ModelPortal, work: Work) -> ScrubUnit:
    made = ScrubUnit(host, portal, "gpu-server", work)
    made.start()
    return made


def test_one_order_after_the_other_is_done_and_told() -> None:
    host, portal = ScrubHost(), ModelPortal(ScrubOrder("a", LONE), ScrubOrder("b", "0000:27:00.0"))
    work = Work(host)
    unit(host, portal, work).work()
    assert work.done == ["a", "b"]
    assert (portal.outcomes("a"), portal.outcomes("b")) == (["clean"], ["clean"])
    assert scrub_journal.load(host) == scrub_journal.ScrubJournal()
    assert host.modes[scrub_journal.JOURNAL_FILE] == 0o600


def test_an_answer_that_is_lost_is_told_again_and_nothing_done_twice() -> None:
    host, portal = ScrubHost(), ModelPortal(ScrubOrder("a", LONE))
    work = Work(host)
    made = unit(host, portal, work)
    assert made.step()
    portal.loses_answers = 2
    for _ in range(2):
        with pytest.raises(PortalAwayError):
            made.step()
    assert not made.step()
    assert (work.done, portal.outcomes("a")) == (["a"], ["clean"] * 3)


@pytest.mark.parametrize("changes", range(12))
def test_after_a_kill_at_any_moment_nothing_is_told_that_was_not_seen(changes: int) -> None:
    host, portal = ScrubHost(), ModelPortal(ScrubOrder("a", LONE))
    work = Work(host)
    host.changes_left = changes
    with suppress(LostPower):
        unit(host, portal, work).work()
    ended = "a" in work.done
    host.changes_left = None
    after = Work(host)
    unit(host, portal, after).work()
    outcomes = portal.outcomes("a")
    assert outcomes
    assert set(outcomes) <= {"clean", "unknown"}
    if "clean" in outcomes:
        assert ended or after.done
    assert not portal.open
    assert scrub_journal.load(host).begun == ()


def test_lanes_from_before_an_interruption_are_remembered() -> None:
    host, portal = ScrubHost(), ModelPortal(ScrubOrder("a", LONE))
    work = Work(host)
    host.changes_left = 2  # one at the start, one for the order
    with pytest.raises(LostPower):
        unit(host, portal, work).work()
    host.changes_left = None
    host.attribute(LONE, "current_link_width", "4")  # what the reset has left
    portal.open = [ScrubOrder("b", LONE)]
    unit(host, portal, work).work()
    assert portal.outcomes("a") == ["unknown"]
    assert work.widths == [{LONE: 16}]
    portal.open = [ScrubOrder("c", LONE)]
    unit(host, portal, work).work()
    assert work.widths[-1] == {LONE: 4}  # a scrub that ended has said what it thinks of it


@pytest.mark.parametrize("text", ["", "{", "[]", '{"gpuyard_scrubs": 1}', '{"gpuyard_scrubs": 1, "begun": 3}', "null"])
def test_a_journal_that_nobody_can_read_is_begun_anew(text: str) -> None:
    host, portal = ScrubHost(), ModelPortal(ScrubOrder("a", LONE))
    host.put(scrub_journal.JOURNAL_FILE, text)
    unit(host, portal, Work(host)).work()
    assert portal.outcomes("a") == ["clean"]


@pytest.mark.parametrize(
    "answer",
    [
        {"orders": None}, {}, {"orders": [{"id": "a"}]}, {"orders": ["a"]}, {"orders": [{"id": "a", "address": 4}]},
        {"orders": [{"id": "a/../b", "address": LONE}]}, {"orders": [{"id": "a", "address": "../../x"}]},
        {"orders": [{"id": "a", "address": f"{LONE}\n"}]}, {"orders": [{"id": "a", "address": f"{LONE}/../x"}]},
        {"orders": [{"id": "a", "address": LONE}] * 65},
    ],
)  # fmt: skip
def test_a_portal_that_talks_nonsense_moves_nothing(answer: dict[str, Any]) -> None:
    host, portal = ScrubHost(), ModelPortal()
    portal.answer = answer or {"other": 1}
    work = Work(host)
    with pytest.raises(PortalAwayError):
        unit(host, portal, work).work()
    assert work.done == []


@pytest.mark.filterwarnings("ignore")  # of libraries that other tests have loaded, which dislike a fork
def test_a_scrub_runs_in_a_process_that_can_be_left_behind() -> None:
    order = ScrubOrder("a", LONE)

    def clean(tree: object, address: str, id: str, **_: object) -> ScrubResult:
        return ScrubResult(id, address, ScrubOutcome.CLEAN, functions=(address,), evidence=("seen",))

    def hangs(*_: object, **__: object) -> ScrubResult:
        time.sleep(60)
        raise AssertionError

    def dies(*_: object, **__: object) -> ScrubResult:
        raise SystemExit

    host = ScrubHost()
    done = in_a_process(host, order, {}, scrub=clean)
    assert (done.order, done.outcome, done.functions, done.evidence) == ("a", ScrubOutcome.CLEAN, (LONE,), ("seen",))
    assert done.seconds > 0
    late = in_a_process(host, order, {}, seconds=0.2, scrub=hangs)
    assert (late.outcome, late.reason) == (
        ScrubOutcome.FAILED,
        "the reset has not returned after 0.2 s: dmesg says more",
    )
    assert in_a_process(host, order, {}, scrub=dies).outcome is ScrubOutcome.UNKNOWN
