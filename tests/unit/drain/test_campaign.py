"""Campaigns by themselves: the file, what is next, and that no end of a run, wherever it comes, spoils one."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.main import get_command

from gpuyard.console.options import DEFAULT_SITE
from gpuyard.deployment.journal import DeployJournal, Happening, JournalEntry
from gpuyard.drain.campaign.definition import Campaign, read_campaign
from gpuyard.drain.campaign.planner import (
    CampaignAct,
    CampaignCost,
    CampaignGpu,
    CampaignHostState,
    CampaignMaintenance,
    CampaignNow,
    CampaignPlan,
    CampaignRow,
    CampaignStanding,
    CampaignWork,
    expected,
    plan_campaign,
)
from gpuyard.drain.campaign.ports import PortalCampaign
from gpuyard.drain.campaign.runner import PATIENCE, CampaignRun, CampaignUnseenError
from gpuyard.drain.campaign.work import NOT_STARTED, WorkFile
from gpuyard.drain.cli.campaign import _again, app
from gpuyard.health.maintenance import MaintenanceState
from gpuyard.health.records import HealthState
from gpuyard.model.errors import GpuyardError, UsageError

A, M, S = CampaignAct, MaintenanceState, CampaignStanding
NOW = datetime(2026, 12, 1, 8, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
PLAY = "ansible-playbook -l {host} kernel.yml"


def campaign(hosts: int = 3, **more: object) -> Campaign:
    work = {} if "by_hand" in more else {"run": PLAY}
    names = [f"gpu-{number}" for number in range(1, hosts + 1)]
    return Campaign.model_validate({"campaign": "k", "comment": "kernel", "hosts": names, **work, **more})


# The file


def test_a_file_says_all(tmp_path: Path) -> None:
    path = tmp_path / "kernel.yaml"
    path.write_text(
        "campaign: kernel-6.12\ncomment: kernel 6.12\nhosts: [gpu-1, gpu-2]\ncanary: gpu-2\nat_once: 2\n"
        "takes: 90 min\ndrained_within: 12 h\nrun: ansible-playbook -l {host} 'my kernel.yml'\n"
    )
    definition = read_campaign(path)
    assert (definition.first, definition.title) == ("gpu-2", "kernel 6.12 (campaign kernel-6.12)")
    assert definition.words("gpu-1") == ["ansible-playbook", "-l", "gpu-1", "my kernel.yml"]
    assert (definition.takes, definition.drained_within, definition.back_within) == (90 * MINUTE, 12 * HOUR, HOUR)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hosts": "[gpu-1, gpu-1]"}, "host gpu-1 is there twice"),
        ({"hosts": "[]"}, "x.yaml:3: hosts: is empty"),
        ({"hosts": "[--all]"}, "x.yaml:3: hosts.0: '--all' does not look right"),
        ({"hosts": "['a;id']"}, "does not look right"),
        ({"canary": "gpu-9"}, "the canary gpu-9 is none of 'hosts'"),
        ({"at_once": "0"}, "is out of range"),
        ({"by_hand": "true"}, "one of the two"),
        ({"run": "''"}, "one of the two"),
        ({"run": "ansible-playbook kernel.yml"}, "'run' has no {host}"),
        ({"run": '"ssh {host} \'a"'}, "'run' is no command: No closing quotation"),
        ({"takes": "soon"}, "is not a duration"),
        ({"at_onec": "2"}, "unknown key; did you mean 'at_once'?"),
        ({"campaign": "../x"}, "letters, digits and . _ -"),
    ],
)
def test_what_cannot_be_is_said_with_its_line(tmp_path: Path, change: dict[str, str], says: str) -> None:
    lines = {"campaign": "k", "comment": "kernel", "hosts": "[gpu-1, gpu-2]", "run": PLAY, **change}
    path = tmp_path / "x.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in lines.items()))
    with pytest.raises(UsageError) as caught:
        read_campaign(path)
    assert says in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_campaign(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match=f"^{tmp_path}: cannot be read: Is a directory$"):
        read_campaign(tmp_path)
    (tmp_path / "latin").write_bytes(b"comment: caf\xe9")
    with pytest.raises(UsageError, match="cannot be read: it is not text in UTF-8"):
        read_campaign(tmp_path / "latin")


def test_the_command_that_goes_on_has_all_that_was_typed() -> None:
    plain = _again(Path("kernel.yaml"), None, None, DEFAULT_SITE, None, "")
    assert plain == "gpuyard host campaign run kernel.yaml"
    command_line = _again(Path("my kernel.yaml"), Path("state"), "UTC", Path("b.yaml"), "root", "http://127.0.0.1:8080")
    words = shlex.split(command_line)
    assert words[:4] == ["gpuyard", "host", "campaign", "run"]
    command = get_command(app).get_command(None, "run")  # type: ignore[attr-defined]
    parsed = command.make_context("run", words[4:]).params
    assert {name: str(value) for name, value in parsed.items()} == {
        "file": "my kernel.yaml",
        "yes": "False",
        "state": "state",
        "zone": "UTC",
        "site": "b.yaml",
        "cloud": "root",
        "url": "http://127.0.0.1:8080",
    }


# What is next


def entry(
    act: CampaignAct, host: str, happening: Happening = Happening.DONE, run: str = "r1", about: str = ""
) -> JournalEntry:
    return JournalEntry(run, act, host, happening, "2026-12-01T07:00:00+00:00", about)


def seen(state: MaintenanceState, **more: object) -> CampaignHostState:
    fields = CampaignMaintenance.__dataclass_fields__
    mine = {"servers": ()} | {name: value for name, value in more.items() if name in fields}
    others = {name: value for name, value in more.items() if name not in fields}
    return CampaignHostState(CampaignMaintenance(state, NOW - MINUTE, **mine), **others)  # type: ignore[arg-type]


def planned(
    definition: Campaign,
    sights: Mapping[str, CampaignHostState],
    *entries: JournalEntry,
    run: str = "r2",
    **more: object,
) -> dict[str, CampaignRow]:
    now = CampaignNow(sights, DeployJournal(entries, run), NOW, **more)  # type: ignore[arg-type]
    return {row.host: row for row in plan_campaign(definition, now).rows}


BEGUN = entry(A.BEGIN, "gpu-1")
WORKED = (BEGUN, entry(A.WORK, "gpu-1"))
GPU = CampaignGpu("27:00.0", HealthState.TO_ACCEPT, NOW)


@pytest.mark.parametrize(
    ("sight", "entries", "standing", "act", "says"),
    [
        (CampaignHostState(), (), S.WAITING, A.BEGIN, "the canary"),
        (CampaignHostState(other="a fan, until noon"), (), S.TAKEN, None, "a fan, until noon"),
        (seen(M.DRAINING, servers=("train",)), (BEGUN,), S.DRAINING, None, "waits for train"),
        (seen(M.DRAINING, problems=("nova-compute is to be disabled: 403",)), (BEGUN,), S.DRAINING, None, "403"),
        (seen(M.IN_WORK), (BEGUN,), S.EMPTY, A.WORK, "it is empty"),
        (seen(M.IN_WORK, servers=("web",)), (BEGUN,), S.DRAINING, None, "waits for web"),
        (seen(M.IN_WORK, servers=None), (BEGUN,), S.DRAINING, None, "waits until it is known which servers are there"),
        (seen(M.IN_WORK, servers=("web",)), WORKED, S.AT_WORK, A.DONE, "the work is done"),
        (seen(M.IN_WORK), (BEGUN, entry(A.WORK, "gpu-1", Happening.BEGUN)), S.EMPTY, A.WORK, "nobody knows how far"),
        (seen(M.IN_WORK), (BEGUN, entry(A.WORK, "gpu-1", Happening.FAILED, "r2", "it ended with 2")), S.FAILED, None,
         "it ended with 2"),
        (seen(M.IN_WORK), (BEGUN, entry(A.WORK, "gpu-1", Happening.FAILED, "r1", "it ended with 2")), S.EMPTY, A.WORK,
         "once more, after a failure: it ended with 2"),
        (seen(M.IN_WORK, work=CampaignWork.RUNNING, log="log"), (BEGUN,), S.AT_WORK, None, "output in log"),
        (seen(M.IN_WORK), WORKED, S.AT_WORK, A.DONE, "the work is done"),
        (seen(M.IN_WORK), (*WORKED, entry(A.DONE, "gpu-1")), S.BY_HAND, None, "somebody works on it again"),
        (seen(M.IN_WORK), (*WORKED, entry(A.DONE, "gpu-1", Happening.FAILED, "r2", "you may not")), S.FAILED, None,
         "you may not"),
        (seen(M.IN_WORK), (*WORKED, entry(A.DONE, "gpu-1", Happening.FAILED, "r1", "x")), S.AT_WORK, A.DONE, "is done"),
        (seen(M.CHECKING, done=NOW), (BEGUN, entry(A.WORK, "gpu-1", Happening.FAILED, "r2", "it ended with 2")),
         S.FAILED, None, "it ended with 2"),
        (seen(M.BACK), (BEGUN, entry(A.WORK, "gpu-1", Happening.FAILED, "r2", "it ended with 2")), S.FAILED, None,
         "it ended with 2"),
        (seen(M.CHECKING, done=NOW - MINUTE, problems=("nova-compute is down",)), WORKED, S.CHECKING, None, "is down"),
        (seen(M.CHECKING, done=NOW - 2 * HOUR, problems=("nova-compute is down",)), WORKED, S.FAILED, None,
         "not given back since 2026-12-01 06:00 UTC: nova-compute is down"),
        (seen(M.BACK), WORKED, S.CHECKING, A.RETURN, "it has passed its check"),
        (seen(M.BACK, gpus=(GPU,)), WORKED, S.ACCEPTING, A.ACCEPT, "27:00.0: to be accepted"),
        (seen(M.BACK, gpus=(GPU,), tries=1), WORKED, S.ACCEPTING, None, "servers try 1"),
        (seen(M.BACK, gpus=(GPU,), tried="no image"), (*WORKED, entry(A.ACCEPT, "gpu-1", run="r2")), S.FAILED, None,
         "27:00.0: not accepted: no image"),
        (seen(M.BACK, gpus=(replace(GPU, state=HealthState.QUARANTINED, cause="it fell off"),)), WORKED, S.FAILED, None,
         "27:00.0 is quarantined: it fell off"),
        (seen(M.BACK, gpus=(replace(GPU, state=HealthState.SUSPECT),)), WORKED, S.CHECKING, None, "suspect"),
        (seen(M.BACK), (replace(BEGUN, run="r2"),), S.FAILED, None, "before its work was begun"),
        (seen(M.BACK), (BEGUN,), S.WAITING, A.BEGIN, "the canary"),
        (seen(M.CANCELLED), (replace(BEGUN, run="r2"),), S.FAILED, None, "was cancelled by somebody"),
        (seen(M.CANCELLED), (BEGUN,), S.WAITING, A.BEGIN, "the canary"),
        (CampaignHostState(), (entry(A.BEGIN, "gpu-1", Happening.FAILED, "r2", "refused"),), S.FAILED, None, "refused"),
        (CampaignHostState(), (entry(A.RETURN, "gpu-1"),), S.BACK, None, "since 2026-12-01T07:00:00+00:00"),
    ],
)  # fmt: skip
def test_each_thing_that_is_seen_says_what_is_next(
    sight: CampaignHostState,
    entries: Sequence[JournalEntry],
    standing: CampaignStanding,
    act: CampaignAct | None,
    says: str,
) -> None:
    row = planned(campaign(1), {"gpu-1": sight}, *entries)["gpu-1"]
    assert (row.standing, row.act) == (standing, act), row.reason
    assert says in row.reason


def test_a_host_that_is_not_empty_in_time_has_failed() -> None:
    sight = seen(M.DRAINING, begun=NOW - 3 * HOUR, servers=("train",))
    row = planned(campaign(1, drained_within="2 h"), {"gpu-1": sight}, BEGUN)["gpu-1"]
    assert (row.standing, row.reason) == (S.FAILED, "not empty since 2026-12-01 05:00 UTC: waits for train")


def test_people_who_work_by_hand_say_when_it_is_done() -> None:
    by_hand = campaign(2, by_hand=True)
    row = planned(by_hand, {"gpu-1": seen(M.IN_WORK)}, BEGUN)["gpu-1"]
    assert row == CampaignRow(
        "gpu-1", S.BY_HAND, "it is empty; waits until somebody says 'gpuyard host maintenance done gpu-1'"
    )
    assert planned(by_hand, {"gpu-1": seen(M.BACK)}, BEGUN)["gpu-1"].act is A.RETURN


def test_the_canary_is_first_and_the_others_come_when_it_is_back() -> None:
    definition = campaign(4, canary="gpu-3", at_once=2)
    rows = planned(definition, {})
    assert [row.act for row in rows.values()] == [None, None, A.BEGIN, None]
    assert rows["gpu-1"].reason == "waits for the canary gpu-3"
    rows = planned(definition, {"gpu-3": seen(M.CHECKING, done=NOW)}, entry(A.BEGIN, "gpu-3"), entry(A.WORK, "gpu-3"))
    assert rows["gpu-1"].reason == "waits for the canary gpu-3, which is checking"
    rows = planned(definition, {}, entry(A.RETURN, "gpu-3"))
    assert [row.act for row in rows.values()] == [A.BEGIN, A.BEGIN, None, None]
    assert rows["gpu-4"].reason == "waits for its turn"
    rows = planned(definition, {"gpu-3": CampaignHostState(other="a fan")})
    assert not [row for row in rows.values() if row.act], "somebody else works on the canary"


def test_where_nobody_would_lose_anything_is_first() -> None:
    costs = {"gpu-2": CampaignCost(stays=("booking b1",)), "gpu-3": CampaignCost(moves=3)}
    rows = planned(campaign(4), {}, entry(A.RETURN, "gpu-1"), costs=costs)
    assert [row.host for row in rows.values() if row.act] == ["gpu-3"]


def test_after_a_failure_nothing_begins_and_what_is_at_work_goes_on() -> None:
    definition = campaign(6, at_once=4)
    bad = entry(A.WORK, "gpu-2", Happening.FAILED, "r2", "it ended with 2")
    begun = [entry(A.BEGIN, f"gpu-{number}", run="r2") for number in (2, 3, 4)]
    sights = {
        "gpu-2": seen(M.IN_WORK),
        "gpu-3": seen(M.IN_WORK),
        "gpu-4": seen(M.IN_WORK, work=CampaignWork.RUNNING, log="log"),
    }
    rows = planned(definition, sights, entry(A.RETURN, "gpu-1"), *begun, bad)
    assert not [row for row in rows.values() if row.act]
    assert rows["gpu-3"].reason == "its work is not begun: stopped after gpu-2 failed"
    assert rows["gpu-5"].reason == "not begun: stopped after gpu-2 failed"
    rows = planned(definition, sights, entry(A.RETURN, "gpu-1"), *begun, bad, run="r3")
    assert [row.host for row in rows.values() if row.act] == ["gpu-2", "gpu-3"], "the next run tries again"
    assert rows["gpu-5"].reason == "waits for gpu-2, which failed before"


def test_a_host_that_was_not_accepted_is_back_before_another_one_begins() -> None:
    failed = (entry(A.BEGIN, "gpu-2"), entry(A.WORK, "gpu-2"), entry(A.RETURN, "gpu-2", Happening.FAILED, "r1", "cold"))
    sights = {"gpu-2": seen(M.BACK, gpus=(GPU,))}
    rows = planned(campaign(3, at_once=2), sights, entry(A.RETURN, "gpu-1"), *failed)
    assert (rows["gpu-2"].act, rows["gpu-3"].act) == (A.ACCEPT, None)
    assert rows["gpu-3"].reason == "waits for gpu-2, which failed before"


def test_whoever_stops_it_stops_what_has_not_begun() -> None:
    rows = planned(campaign(2), {}, stop="stopped by ada")
    assert rows["gpu-1"] == CampaignRow("gpu-1", S.WAITING, "not begun: stopped by ada")


def test_when_hosts_would_be_out_of_use() -> None:
    definition = campaign(5, at_once=2)
    rows = [CampaignRow(host, S.WAITING, "") for host in definition.hosts]
    starts = [(start - NOW) / HOUR for start, _ in expected(definition, rows, NOW).values()]
    assert starts == [0, 2, 2, 4, 4]


# A run, on hosts of a model, and killed anywhere


class Killed(BaseException):
    """As by kill -9."""


@dataclass
class Model:
    """Hosts, their maintenances and commands, as far as a campaign sees them; they outlive a run. `fate`: host -> what
    goes wrong there, as often as it says."""

    campaign: Campaign
    fate: dict[str, list[str]]
    time: datetime = NOW
    state: dict[str, MaintenanceState] = field(default_factory=dict)
    since: dict[str, datetime] = field(default_factory=dict)
    attempts: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Attempt -> host, and how it goes."""
    worked: list[tuple[str, str]] = field(default_factory=list)
    """Host and how its command ended, for each that was started."""
    entries: list[JournalEntry] = field(default_factory=list)
    kill_in: int = -1
    """Steps until somebody kills the run; below 0: nobody does."""
    log: list[tuple[str, str]] = field(default_factory=list)
    """Begins, and returns, of hosts."""

    def clock(self) -> datetime:
        return self.time

    def step(self) -> None:
        self.kill_in -= 1
        if self.kill_in == 0:
            raise Killed

    def bad(self, host: str, what: str) -> bool:
        if self.fate.get(host, [""])[:1] == [what]:
            self.fate[host].pop(0)
            return True
        return False

    # As doors

    def look(self, journal: DeployJournal) -> dict[str, CampaignHostState]:
        self.step()
        assert sum(state not in (M.BACK, M.CANCELLED) for state in self.state.values()) <= self.campaign.at_once
        sights = {}
        for host in self.campaign.hosts:
            if host not in self.state:
                sights[host] = CampaignHostState()
                continue
            begun = journal.last(A.WORK, host)
            attempt = begun.about if begun is not None and begun.happening is Happening.BEGUN else ""
            how = self.attempts.get(attempt, ("", "none"))[1]
            work = {"none": CampaignWork.NONE, "running": CampaignWork.RUNNING}.get(how, CampaignWork.ENDED)
            since = self.since[host]
            maintenance = CampaignMaintenance(self.state[host], since, since, since, servers=())
            sights[host] = CampaignHostState(maintenance, work=work, code=int(how == "bad"), log="log")
        return sights

    def costs(self, hosts: Sequence[str], start: datetime, end: datetime) -> dict[str, CampaignCost]:
        return {}

    def begin(self, host: str) -> None:
        self.step()
        assert self.state.get(host) in (None, M.CANCELLED), "a host has one maintenance at a time"
        self.turn(host, M.DRAINING)
        self.log.append(("begin", host))
        self.step()

    def work(self, host: str, attempt: str) -> None:
        self.step()
        assert self.state[host] is M.IN_WORK
        assert ("good", host) not in [(how, worked_host) for worked_host, how in self.worked], "done twice"
        assert "running" not in [how for busy_host, how in self.attempts.values() if busy_host == host], "two at once"
        self.attempts[attempt] = (host, "running")
        self.step()

    def done(self, host: str) -> None:
        self.step()
        self.turn(host, M.CHECKING)
        self.step()

    def accept(self, host: str) -> None: ...

    def stop_asked(self) -> str:
        return ""

    def wait(self) -> None:
        """What people, hosts and commands do meanwhile."""
        self.step()
        self.time += 40 * MINUTE
        for attempt, (host, how) in self.attempts.items():
            if how == "running":
                how = "bad" if self.bad(host, "work") else "good"
                self.attempts[attempt] = (host, how)
                self.worked.append((host, how))
        for host, state in self.state.items():
            if state is M.DRAINING:
                self.turn(host, M.IN_WORK)
            elif state is M.CHECKING and not self.bad(host, "check"):
                self.turn(host, M.BACK)
                self.log.append(("back", host))

    def turn(self, host: str, state: MaintenanceState) -> None:
        self.state[host], self.since[host] = state, self.time

    # As the writer of a journal

    def write(self, entry: JournalEntry) -> None:
        self.step()
        self.entries.append(entry)
        self.step()

    def go(self, run: str) -> CampaignPlan:
        campaign_run = CampaignRun(self.campaign, self, self, self.clock, lambda plan: None)  # type: ignore[arg-type]
        return campaign_run.run(DeployJournal(tuple(self.entries), run))


def no_begin_too_early(model: Model, first: str) -> None:
    """None before the canary is back."""
    begins = [host for what, host in model.log if what == "begin"]
    assert begins[:1] in ([], [first])
    if len(set(begins)) > 1:
        assert model.log.index(("back", first)) < model.log.index(("begin", next(h for h in begins if h != first)))


FATES = st.lists(st.sampled_from(["work", "check"]), max_size=4)


@given(
    hosts=st.integers(1, 5),
    at_once=st.integers(1, 3),
    canary=st.integers(0, 4),
    fates=st.lists(FATES, max_size=5),
    kills=st.lists(st.integers(1, 60), max_size=6),
)
@settings(max_examples=150, deadline=None)
def test_a_campaign_that_is_killed_and_fails_anywhere_comes_to_its_end(
    hosts: int, at_once: int, canary: int, fates: list[list[str]], kills: list[int]
) -> None:
    definition = campaign(hosts, at_once=at_once, canary=f"gpu-{canary % hosts + 1}")
    # Who finds "check" wrong twice has failed: forty minutes are over each time, and it may take an hour.
    model = Model(definition, {f"gpu-{n}": list(fate) for n, fate in enumerate(fates, 1)})
    for number, kill in enumerate([*kills, *[-1] * 20]):
        model.kill_in = kill
        before = len(model.log)
        entries = len(model.entries)
        try:
            plan = model.go(f"r{number}")
        except Killed:
            continue
        finally:
            no_begin_too_early(model, definition.first)
            failed = [n for n, e in enumerate(model.entries[entries:]) if e.happening is Happening.FAILED]
            begun = [
                n
                for n, e in enumerate(model.entries[entries:])
                if e.stage in (A.BEGIN, A.WORK) and e.happening is Happening.BEGUN
            ]
            assert not failed or not [n for n in begun if n > failed[0]], "nothing begins after a failure"
        if not plan.left:
            break
        assert plan.failed or before < len(model.log)
        model.kill_in = -1
        model.wait()  # somebody looks after it
    else:
        pytest.fail("it never ends")
    assert sorted(host for host, how in model.worked if how == "good") == sorted(definition.hosts), "each once"
    assert set(model.state.values()) == {M.BACK}


class LongModel(Model):
    """The command on gpu-3 takes six hours."""

    def wait(self) -> None:
        busy = {
            attempt: (host, how)
            for attempt, (host, how) in self.attempts.items()
            if host == "gpu-3" and self.time < NOW + 6 * HOUR
        }
        self.attempts = {attempt: assignment for attempt, assignment in self.attempts.items() if attempt not in busy}
        super().wait()
        self.attempts |= busy


def test_a_host_that_has_failed_and_gets_well_while_others_are_at_work_has_failed() -> None:
    model = LongModel(campaign(4, at_once=2), {"gpu-2": ["check", "check"]})
    plan = model.go("r1")
    assert [host for what, host in model.log if what == "begin"] == ["gpu-1", "gpu-2", "gpu-3"]
    assert (plan.halted, [row.host for row in plan.failed]) == ("stopped after gpu-2 failed", ["gpu-2"])
    assert model.state["gpu-2"] is M.BACK
    noted = [(entry.object, entry.about) for entry in model.entries if entry.happening is Happening.FAILED]
    assert [host for host, why in noted if "not given back since" in why] == ["gpu-2"]
    assert not model.go("r2").left


def test_a_portal_that_is_away_for_a_while_is_waited_for() -> None:
    model = Model(campaign(2), {})
    look = model.look
    messages: list[str] = []

    def sometimes(journal: DeployJournal) -> dict[str, CampaignHostState]:
        if model.time < NOW + HOUR / 3:
            model.time += 5 * MINUTE
            raise CampaignUnseenError("no answer from the portal")
        return look(journal)

    model.look = sometimes  # type: ignore[method-assign]
    campaign_run = CampaignRun(model.campaign, model, model, model.clock, lambda plan: None, messages.append)  # type: ignore[arg-type]
    assert not campaign_run.run(DeployJournal((), "r1")).left
    assert messages
    model.time = NOW - 2 * PATIENCE
    with pytest.raises(CampaignUnseenError):
        campaign_run.run(DeployJournal((), "r2"))


def test_a_portal_that_answers_and_does_nothing_is_not_asked_for_ever() -> None:
    model = Model(campaign(1), {})

    def begin(host: str) -> None:
        raise CampaignUnseenError("the portal could not do it")

    model.begin = begin  # type: ignore[method-assign]
    with pytest.raises(CampaignUnseenError, match="could not do it"):
        model.go("r1")
    assert model.time - NOW <= 2 * PATIENCE


class AnyPortal:
    """As far as it is asked about a maintenance of gpu-1 that somebody has begun."""

    def __init__(self, comment: str) -> None:
        since = NOW.isoformat()
        self.row: dict[str, object] = {
            "id": "m",
            "host": "gpu-1",
            "state": "in work",
            "since": since,
            "begun": since,
            "done": None,
        }
        self.row |= {"comment": comment, "problems": [], "servers": [], "end": since}

    def maintenances(self, **filters: object) -> list[dict[str, object]]:
        return [self.row]


@pytest.mark.parametrize(
    ("comment", "ours"),
    [("kernel (campaign k)", True), ("kernel 6.12 (campaign k)", True), ("kernel", False), ("x (campaign kk)", False)],
)
def test_a_maintenance_is_the_campaigns_by_its_name_whatever_its_words(
    tmp_path: Path, comment: str, ours: bool
) -> None:
    portal: Any = AnyPortal(comment)
    doors = PortalCampaign(campaign(1), portal, tmp_path, lambda: NOW, lambda: None, ZoneInfo("UTC"))
    sight = doors.look(DeployJournal())["gpu-1"]
    assert (sight.maintenance is not None) is ours
    assert bool(sight.other) is not ours


@pytest.mark.parametrize(
    ("more", "servers", "may"),
    [
        ({}, None, ()),
        ({"servers_known": False}, None, ()),
        ({"servers_known": True}, (), ()),
        ({"servers_known": True, "servers": [{"id": "s1", "name": "web", "may_go_down": False},
                                             {"id": "s2", "name": "db", "may_go_down": True}]}, ("web",), ("s2",)),
    ],
)  # fmt: skip
def test_a_portal_that_does_not_say_who_is_there_does_not_say_that_nobody_is(
    tmp_path: Path, more: dict[str, object], servers: object, may: object
) -> None:
    """The first is one of a release in which only servers with GPUs counted."""
    portal: Any = AnyPortal("kernel (campaign k)")
    portal.row |= more
    doors = PortalCampaign(campaign(1), portal, tmp_path, lambda: NOW, lambda: None, ZoneInfo("UTC"))
    maintenance = doors.look(DeployJournal())["gpu-1"].maintenance
    assert maintenance is not None
    assert (maintenance.servers, maintenance.may_go_down) == (servers, may)


def test_servers_that_may_go_down_are_in_the_file_and_go_to_the_portal(tmp_path: Path) -> None:
    id = "5e2a0000-0000-4000-8000-000000000001"
    with pytest.raises(ValueError, match="may_go_down"):
        campaign(1, may_go_down=["web"])
    portal: Any = AnyPortal("kernel (campaign k)")
    sent: list[dict[str, object]] = []
    portal.plan_maintenance = sent.append
    PortalCampaign(campaign(1, may_go_down=[id]), portal, tmp_path, lambda: NOW, lambda: None, ZoneInfo("UTC")).begin(
        "gpu-1"
    )
    assert sent[0]["may_go_down"] == [id]


# The command for one host


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_command_runs_by_itself_and_its_end_is_known(tmp_path: Path) -> None:
    file = WorkFile(tmp_path / "k", "gpu-1", "r1-0")
    assert (file.runs(), file.code()) == (False, None)
    file.start(["sh", "-c", f"echo $0 $1; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; exit 3", "a b", "$HOME"])
    assert file.runs()
    assert file.code() is None
    (tmp_path / "go").touch()
    wait_for(lambda: not file.runs())
    assert file.code() == 3
    assert file.log.read_text() == "a b $HOME\n", "no shell of ours reads it"
    with pytest.raises(GpuyardError, match="cannot be written"):
        file.start(["true"])


def test_a_program_that_is_not_there_has_failed(tmp_path: Path) -> None:
    file = WorkFile(tmp_path, "gpu-1", "r1-0")
    file.start(["/no/such/program"])
    wait_for(lambda: not file.runs())
    assert file.code() == NOT_STARTED
    assert "No such file" in file.log.read_text()


def test_of_one_that_was_killed_nobody_knows_how_far_it_came(tmp_path: Path) -> None:
    file = WorkFile(tmp_path, "gpu-1", "r1-0")
    file.start(["sh", "-c", f"echo $PPID > {tmp_path}/above; sleep 30"])
    wait_for(lambda: (tmp_path / "above").exists() and (tmp_path / "above").read_text().endswith("\n"))
    os.killpg(int((tmp_path / "above").read_text()), signal.SIGKILL)
    wait_for(lambda: not file.runs())
    assert file.code() is None
