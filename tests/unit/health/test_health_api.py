"""The API, the pages and the metrics of health: what people see of how GPUs are, and do about it."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuyard.health.baseline import Baseline
from gpuyard.health.cli.health_rows import health_row
from gpuyard.health.records import HealthState, Observation, Trial
from gpuyard.health.verdicts import SignalVerdicts
from gpuyard.health.web.health_api import REPORTS
from gpuyard.model.booking import BookingState
from gpuyard.model.signals import Source
from gpuyard.site.health_rules import SiteHealth
from gpuyard.web.settings import OthersShown
from tests.support.health_portals import ADAS, SERVER, HealthPortal, fill, fine, health_portal, turn
from tests.support.inventories import NASTY
from tests.support.ledgers import ADA, BOB, DAY, EVE, HOUR, NOON, ROOT, ask
from tests.support.portals import ROOMY

S, UTC = HealthState, ZoneInfo("UTC")
LEADER, LONE, ADAS_GPU = "gpu-1/0000:27:00.0", "gpu-1/0000:c3:00.0", f"gpu-1/{ADAS}"


@pytest.fixture
def portal(tmp_path: Path) -> HealthPortal:
    made = health_portal(tmp_path)
    fine(made)
    return made


def of(gpu: str, step: str = "") -> str:
    return f"/v1/health/{gpu}{step and '/'}{step}"


# What is told


def test_every_gpu_has_its_state_and_when_its_host_was_heard(tmp_path: Path) -> None:
    portal = health_portal(tmp_path)
    fill(portal)
    client = portal.program(ROOT)
    rows = {f"{row['host']}/{row['address']}": row for row in client.get("/v1/health").json()["gpus"]}
    assert len(rows) == 8
    bad = rows[LEADER]
    assert (bad["state"], bad["signal"], bad["card"], bad["bad"]) == ("quarantined", "no-answer", "1323022081234", 2)
    assert bad["advice"] == "It fell off the bus: restart the host."
    assert {row["host"] for row in rows.values() if row["silent"]} == {"gpu-3"}
    matches = client.get("/v1/health?state=quarantined&state=suspect&host=gpu-1").json()["gpus"]
    assert [row["address"] for row in matches] == ["0000:27:00.0", ADAS]
    assert client.get("/v1/health", params={"card": "1323022085555"}).json()["gpus"][0]["state"] == "in repair"


def test_a_host_that_never_said_a_word_is_not_fine(portal: HealthPortal) -> None:
    portal.clock.forward(minutes=3)
    rows = portal.program(EVE).get("/v1/health").json()["gpus"]
    assert rows
    assert all(row["silent"] and row["state"] == "fine" for row in rows)


def test_a_record_is_read_page_by_page_the_newest_first(portal: HealthPortal) -> None:
    for number in range(7):
        portal.service.note(LEADER, f"look {number}", ROOT)
    client, path, causes = portal.program(ROOT), f"{of(LEADER)}?limit=3", []
    while path:
        page = client.get(path).json()
        causes += [event["cause"] for event in page["events"]]
        path = next((link["href"] for link in page["links"]), "")
    assert causes == [f"look {number}" for number in reversed(range(7))]


def test_which_server_has_a_gpu_is_for_admins(portal: HealthPortal) -> None:
    turn(portal, LONE, S.IN_USE, timedelta(minutes=1), "server 5e2a0000-bob has it")
    for person in (ROOT, ADA):
        text = "".join(portal.program(person).get(path).text for path in ("/v1/health", of(LONE)))
        assert ("5e2a0000-bob" in text) is (person is ROOT)


@pytest.mark.parametrize("others", list(OthersShown))
def test_words_of_others_are_for_admins(tmp_path: Path, others: OthersShown) -> None:
    settings = replace(ROOMY, others=others)
    portal = health_portal(tmp_path, settings)
    fine(portal)
    minute = timedelta(minutes=1)
    turn(portal, LEADER, S.SUSPECT, minute, "server secret-1 of bob hangs", signal="reported", by="bob",
         evidence="on secret-1", source=Source.PERSON)  # fmt: skip
    turn(portal, ADAS_GPU, S.SUSPECT, minute, "Xid 79 in training", signal="xid-reset", by=SERVER,
         evidence="NVRM: Xid 79", source=Source.GUEST)  # fmt: skip
    turn(portal, LONE, S.QUARANTINED, minute, "its config space reads 0xff", signal="no-answer",
         evidence="ffffffff", source=Source.HOST)  # fmt: skip
    for person, visible in ((ROOT, 3), (ADA, 1), (BOB, 0)):
        client = portal.browser(person).client
        texts = [client.get(path).text for path in ("/v1/health", of(LEADER), of(ADAS_GPU), of(LONE))]
        text = "".join(texts)
        assert ("secret-1" in text) is (person is ROOT)
        assert ("Xid 79" in texts[2]) is (visible > 0)
        assert ("ffffffff" in text) is (person is ROOT)
        assert "its config space reads 0xff" in text
        assert ("bob" in text) is (person in (ROOT, BOB) or others is OthersShown.NAMES)


def test_a_gpu_that_somebody_must_decide_about_says_what_was_seen(portal: HealthPortal) -> None:
    service = portal.service
    host, _, address = LONE.partition("/")
    service.observe([Observation(host, address, "link-width", service.now(), "8 lanes of 16")])
    service.observe([Observation(host, address, "no-answer", service.now(), "ffffffff")])
    assert service.store.put(replace(service.gpu(LONE), asked=True))
    row = portal.program(ROOT).get(of(LONE)).json()["gpu"]
    assert (row["state"], row["asked"], row["signal"]) == ("fine", True, "no-answer")
    assert row["question"].startswith("its config space reads 0xff (no-answer): ffffffff. It should be kept back")
    assert row["advice"] == "It fell off the bus: restart the host."
    page = portal.browser(ROOT).client.get("/health").text
    assert "its config space reads 0xff (no-answer)" in page
    eve_row = portal.program(EVE).get(of(LONE)).json()["gpu"]
    assert "its config space reads 0xff" in eve_row["question"]
    assert "ffffffff" not in eve_row["question"]
    shown = health_row(row, UTC)
    assert shown["State"] == "fine, decide"
    assert shown["Cause"] == row["question"]


def test_where_nothing_resets_gpus_between_tenants_the_pages_say_so(portal: HealthPortal) -> None:
    root = portal.browser(ROOT).client  # v100 has one_time_use, t4 has not
    t4, v100 = "gpu-2/0000:18:00.0", LONE
    assert [portal.program(EVE).get(of(gpu)).json()["gpu"]["scrubbed"] for gpu in (t4, v100)] == [False, True]
    no = "there is no guarantee that it was reset"
    assert no in portal.browser(EVE).client.get(f"/gpu?name={t4}").text
    v100_page = portal.browser(EVE).client.get(f"/gpu?name={v100}").text
    assert no not in v100_page
    assert "released when it came back clean" in v100_page
    page = root.get("/health").text
    assert "GPUs of pool t4 are given on as they were left" in page


def test_where_nothing_resets_any_gpu_the_page_names_all_pools(tmp_path: Path) -> None:
    portal = health_portal(tmp_path, scrubs=False)
    fine(portal)
    page = portal.browser(ROOT).client.get("/health").text
    assert "GPUs of pools t4, v100 are given on as they were left" in page


# What people report


def test_who_has_a_server_or_lately_had_a_booking_reports_a_fault_and_nobody_else(portal: HealthPortal) -> None:
    body = {"words": "nvidia-smi says that it is lost"}
    (booking,) = portal.ledger.create(ask(1, 4, gpu=LONE), BOB)
    assert portal.program(BOB).post(of(LONE, "report"), json=body).status_code == 403
    portal.clock.forward(hours=2)
    portal.ledger.upkeep.advance()
    assert portal.ledger.get(booking.id).state is BookingState.ACTIVE
    assert portal.program(BOB).post(of(LONE, "report"), json=body).status_code == 202
    assert portal.program(EVE).post(of(LONE, "report"), json=body).status_code == 403
    assert portal.program(ADA).post(of(ADAS_GPU, "report"), json=body).status_code == 202
    assert portal.program(EVE).post(of(ADAS_GPU, "report"), json=body).status_code == 403  # of her project, not hers
    assert portal.program(ROOT).post(of(LEADER, "report"), json=body).status_code == 202
    portal.clock.forward(hours=24 * 6)
    portal.ledger.upkeep.advance()
    assert portal.program(BOB).post(of(LONE, "report"), json=body).status_code == 202
    portal.clock.forward(hours=24 * 2)
    refused = portal.program(BOB).post(of(LONE, "report"), json=body)
    assert refused.status_code == 403
    assert "had no booking of it in the last week" in refused.json()["detail"]
    reports = {
        (observation.gpu, observation.code, observation.by, observation.evidence)
        for observation in portal.service.store.open_observations()
    }
    assert reports == {(gpu, "reported", by, body["words"]) for gpu, by in
                     ((LONE, "bob"), (ADAS_GPU, "ada"), (LEADER, "root"))}  # fmt: skip


@pytest.mark.parametrize("words", ["", "   ", "x" * 501, "two\nlines", "\x1b[31mred", "\u202eevil", None, 7])
def test_words_are_one_line_that_can_be_printed(portal: HealthPortal, words: object) -> None:
    for step, field in (("report", "words"), ("quarantine", "comment"), ("repair/note", "comment")):
        answer = portal.program(ROOT).post(of(LEADER, step), json={field: words})
        assert answer.status_code == 422, (step, words)
    assert portal.service.store.open_observations() == []
    assert portal.service.store.events() == []


def test_reports_are_rationed(portal: HealthPortal) -> None:
    client = portal.program(ADA)
    answers = [client.post(of(ADAS_GPU, "report"), json={"words": f"again {n}"}) for n in range(REPORTS + 1)]
    assert [answer.status_code for answer in answers] == [202] * REPORTS + [429]
    assert int(answers[-1].headers["retry-after"]) > 0


def test_a_fault_is_reported_with_the_end_of_a_booking(portal: HealthPortal) -> None:
    (booking,) = portal.ledger.create(ask(1, 4, 2, same_group=True), ADA)
    portal.clock.forward(hours=2)
    portal.ledger.upkeep.advance()
    client = portal.program(ADA)
    assert portal.program(BOB).post(f"/v1/bookings/{booking.id}/end", json={"fault": "x"}).status_code == 403
    assert portal.service.store.open_observations() == []
    row = client.post(f"/v1/bookings/{booking.id}/end", json={"fault": "ECC errors"}).json()
    assert row["state"] == "ended"
    assert [(observation.gpu, observation.evidence) for observation in portal.service.store.open_observations()] == [
        (gpu, "ECC errors") for gpu in row["gpu_names"]
    ]
    assert len(row["gpu_names"]) == 2


# What operators do


def test_a_gpu_goes_through_its_repair(portal: HealthPortal) -> None:
    client = portal.program(ROOT)

    def does(step: str, comment: str) -> tuple[int, str]:
        answer = client.post(of(LONE, step), json={"comment": comment})
        return answer.status_code, answer.json().get("state") or answer.json()["detail"]

    assert does("repair/start", "")[0] == 409
    assert does("quarantine", "smells burnt") == (200, "quarantined")
    assert client.get(of(LONE)).json()["gpu"]["may"] == ["report", "start", "note", "release"]
    assert does("repair/start", "") == (200, "in repair")
    assert client.get(of(LONE)).json()["gpu"]["keeper"] == "root"
    assert does("repair/note", "ordered a fan") == (200, "in repair")
    (out,) = client.get("/v1/repairs").json()["out"]
    assert [event["cause"] for event in out["tried"]] == ["ordered a fan", "somebody looks after it", "smells burnt"]
    assert does("repair/abandon", "on holiday") == (200, "quarantined")
    assert does("repair/done", "new fan")[0] == 409
    assert does("repair/start", "back") == (200, "in repair")
    assert does("repair/done", "new fan") == (200, "fine")
    assert client.get("/v1/repairs").json()["out"] == []
    assert does("quarantine", "again") == (200, "quarantined")
    assert does("release", "it was the cable") == (200, "fine")
    assert client.post(of("gpu-1/0000:ff:00.0", "quarantine"), json={"comment": "x"}).status_code == 404


def test_repeat_offenders_are_counted_by_card_host_and_slot(tmp_path: Path) -> None:
    portal = health_portal(tmp_path)
    fill(portal)
    client = portal.program(ROOT)

    def by(way: str) -> list[tuple[str, int]]:
        return [(row["name"], row["failures"]) for row in client.get(f"/v1/repairs?by={way}").json()["repeats"]]

    assert by("card") == [("1323022081234", 2), ("1323022085555", 1)]
    assert by("host") == [("gpu-1", 3), ("gpu-2", 1)]
    assert by("slot")[0] == (LEADER, 2)


# Pages


def test_pages_show_what_is_wrong_and_escape_what_others_wrote(tmp_path: Path) -> None:
    portal = health_portal(tmp_path)
    fill(portal)
    root = portal.browser(ROOT).client
    page = root.get("/health").text
    assert NASTY not in page
    assert "Host <b>gpu-3</b> was not heard from" in page
    assert re.search(r'data-step="v1/health/gpu-1/0000:27:00.0/repair/start"', page)
    gpu_page = root.get(f"/gpu?name={ADAS_GPU}").text
    assert NASTY not in gpu_page
    assert "Report a fault…" in gpu_page
    ada, eve = (portal.browser(who).client.get(f"/gpu?name={ADAS_GPU}").text for who in (ADA, EVE))
    assert "Report a fault…" in ada
    assert "data-step" not in eve
    assert "Quarantine…" not in ada
    assert portal.browser(ADA).client.get("/health").status_code == 403
    assert root.get("/gpu?name=nonsense").status_code == 404


def test_the_map_marks_what_is_not_as_it_should_be(tmp_path: Path) -> None:
    portal = health_portal(tmp_path)
    fill(portal)
    marks = re.findall(r'<p class="mark">(.*?)</p>', portal.browser(EVE).client.get("/").text)
    assert sorted(marks) == ["in repair", "not heard from", "quarantined", "quarantined", "suspect"]


# Signals that are overruled or on trial, and baselines


def test_what_is_overruled_and_on_trial_is_shown_with_its_line(tmp_path: Path) -> None:
    line = f"health.gpus.{LEADER}.signals.throttled"
    rules = SiteHealth.model_validate({"trial": True, "gpus": {LEADER: {"signals": {"throttled": "bad"}}}})
    portal = health_portal(tmp_path, replace(ROOMY, anonymous_details=True), rules)
    fine(portal)
    verdict = SignalVerdicts(rules).of("throttled", LEADER, "v100")
    trial = Trial(S.QUARANTINED, "throttled", verdict.cause, NOON - HOUR, NOON + HOUR)
    baseline = Baseline(NOON - DAY, ROOT.user, "", {"link-width": 8, "rows-corrected": 2})
    store = portal.service.store
    store.put(replace(portal.service.gpu(LEADER), trial=trial, shown={"link-width": 8}, baseline=baseline))
    row = portal.program(ROOT).get(of(LEADER)).json()["gpu"]
    assert f"throttled: on trial, by {line}: bad and health.trial" in row["overruled"]
    assert row["trial_state"] == "quarantined"
    assert row["trial"].startswith("it would be quarantined since 2026-")
    assert f"[{line}: bad; health.trial] (throttled)" in row["trial"]
    assert row["baseline"].startswith("8 PCIe lanes, 2 rows remapped after corrected errors (taken ")
    assert row["shown"] == "8 PCIe lanes"
    assert "clear-baseline" in row["may"]
    assert health_row(row, UTC)["State"] == "fine (on trial: quarantined)"
    theirs = portal.program(ADA).get(of(LEADER)).json()["gpu"]
    assert (theirs["overruled"], theirs["trial"], theirs["trial_state"]) == ([], "", None), "these are for admins"
    pages = [portal.browser(ROOT).client.get(path).text for path in ("/health", f"/gpu?name={LEADER}")]
    assert all("it would be quarantined since" in page for page in pages)
    assert "8 PCIe lanes, 2 rows remapped" in pages[1]
    text = portal.browser().client.get("/metrics").text
    assert re.search(r'gpuyard_gpu_trial_state\{[^}]*address="0000:27:00.0"[^}]*state="quarantined"\} 1.0', text)
    row = portal.program(ROOT).post(of(LEADER, "repair/clear-baseline"), json={"comment": "another slot"}).json()
    assert row["baseline"] == ""
    assert portal.service.gpu(LEADER).baseline is None
    refused = portal.program(ROOT).post(of(LEADER, "repair/clear-baseline"), json={"comment": "again"})
    assert refused.status_code == 409


# Metrics


@pytest.mark.parametrize("details", [False, True])
def test_metrics_name_hosts_only_where_anybody_may_see_them(tmp_path: Path, details: bool) -> None:
    settings = replace(ROOMY, anonymous_details=details)
    portal = health_portal(tmp_path, settings)
    fine(portal)
    client = portal.browser().client

    def read(name: str) -> dict[tuple[str, ...], float]:
        families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
        return {(sample.name, *sample.labels.values()): sample.value for sample in families[name].samples}

    quiet = read("gpuyard_gpu_quarantines")
    portal.clock.forward(seconds=30)
    portal.service.quarantine(LEADER, "smells", ROOT)
    turn(portal, LONE, S.SCRUBBING, -timedelta(seconds=31), "asked")
    turn(portal, LONE, S.CHECKED, -timedelta(seconds=43), "clean")
    states = read("gpuyard_gpu_health_state")
    assert sum(states.values()) == 8
    address = "0000:27:00.0" if details else ""
    assert states["gpuyard_gpu_health_state", address, "gpu-1" if details else "", "v100", "quarantined"] == 1
    assert ("gpu-1" in client.get("/metrics").text) is details
    assert set(quiet.values()) == {0}
    for _ in range(2):
        assert {key: count for key, count in read("gpuyard_gpu_quarantines").items() if count} == {
            ("gpuyard_gpu_quarantines_total", ""): 1
        }
    portal.clock.forward(minutes=1)
    assert read("gpuyard_gpu_scrub_seconds")["gpuyard_gpu_scrub_seconds_sum",] == 12


def test_nobody_fails_where_health_is_not_followed(tmp_path: Path) -> None:
    from tests.support.portals import booking_portal

    portal = booking_portal(tmp_path)
    (booking,) = portal.ledger.create(ask(), ADA)
    portal.clock.forward(hours=2)
    portal.ledger.upkeep.advance()
    client = portal.browser(ADA).client
    client.headers["X-CSRF-Token"] = client.get("/v1/me").json()["csrf"]
    refused = client.post(f"/v1/bookings/{booking.id}/end", json={"fault": "x"})
    assert (refused.status_code, refused.json()["codes"]) == (409, ["health"])
    assert client.get("/v1/health").status_code == 404
    assert client.get("/health").status_code == 404
    assert client.post(f"/v1/bookings/{booking.id}/end").json()["state"] == "ended"
