"""Readers of `.cirun.yml` and `.access.yml`: what they make of real forms, and of anything else without failing."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.model.finding import Finding
from gpuyard.runners.cirun.access_file import read_access
from gpuyard.runners.cirun.cirun_file import read_cirun
from gpuyard.runners.cirun.records import CirunRunner, IdleByUse, IdleTime, Way
from gpuyard.runners.cirun.rules import RULES
from gpuyard.runners.idle import idle_runners
from gpuyard.runners.lint import lint_files, read_files
from gpuyard.runners.resolve import Configuration, RepositoryFiles, read
from tests.support.communities import COMMUNITY, NOW, ORGANIZATION, community, site_of

GOOD = """\
runners:
  - name: gpu-runner
    cloud: openstack
    instance_type: gpu_large
    machine_image: noble
    region: RegionOne
    labels:
      - cirun-gpu
"""


def runner(**more: str) -> CirunRunner:
    """Of a file with more keys. Values are YAML."""
    keys = {
        "name": "r", "cloud": "openstack", "instance_type": "f", "machine_image": "i", "labels": "[cirun-r]", **more,
    }  # fmt: skip
    (cirun_runner,) = read_cirun(
        "runners:\n  - {" + ", ".join(f"{key}: {value}" for key, value in keys.items()) + "}"
    ).runners
    return cirun_runner


def lines(findings: tuple[Finding, ...] | list[Finding]) -> list[str]:
    return [f"{finding.payload['line']} {finding.code}" for finding in findings]


def test_a_usual_file() -> None:
    file = read_cirun(GOOD)
    assert file.findings == ()
    (cirun_runner,) = file.runners
    assert cirun_runner == CirunRunner(
        "gpu-runner", "openstack", ("cirun-gpu",), (Way("gpu_large", "noble"),), (), ".cirun.yml", 2
    )
    assert cirun_runner.ours


@pytest.mark.parametrize(
    ("keys", "ways"),
    [
        ({}, [("f", "i", False)]),
        ({"preemptible": "true"}, [("f", "i", True)]),
        ({"instance_type": "[a, b, c]"}, [("a", "i", False), ("b", "i", False), ("c", "i", False)]),
        # Lists go together entry by entry, as the manual's examples have it.
        ({"instance_type": "[a, b]", "machine_image": "[x, y]"}, [("a", "x", False), ("b", "y", False)]),
        (
            {"instance_type": "[a, b, c]", "preemptible": "[true, true, false]"},
            [("a", "i", True), ("b", "i", True), ("c", "i", False)],
        ),
        ({"instance_type": "[a, a]", "region": "[x, y]"}, [("a", "i", False)]),
        (
            {"instance_type": "[a, b, c]", "machine_image": "[x, y]"},
            [("a", "x", False), ("b", "y", False), ("c", "y", False)],
        ),
        # What was meant is not to be guessed.
        ({"instance_type": "[a, 5]"}, []),
        ({"machine_image": "{publisher: Canonical}"}, []),
        ({"preemptible": "sometimes"}, []),
        ({"preemptible": "[true, sometimes]"}, []),
        ({"instance_type": "''"}, []),
        ({"instance_type": "[]"}, []),
        ({"run_only_when_triggered_by": "core"}, []),
        ({"cloud": "aws"}, []),
    ],
)  # fmt: skip
def test_ways_are_tried_in_order(keys: dict[str, str], ways: list[tuple[str, str, bool]]) -> None:
    assert [(way.flavor, way.image, way.preemptible) for way in runner(**keys).ways] == ways


@pytest.mark.parametrize(
    ("idle", "read"),
    [
        ("{replicas: 2}", (IdleTime(2),)),
        ("{replicas: 0}", ()),
        (
            "{schedule: [{day: mon-fri, time: 9-17, timezone: UTC, replicas: 4}, {day: sat, time: 22-6, replicas: 1}]}",
            (IdleTime(4, frozenset(range(5)), 9, 17), IdleTime(1, frozenset({5}), 22, 6)),
        ),
        ("{usage_based: {trigger: runner_allocated, replicas: 2, duration: 180}}", IdleByUse(2, timedelta(hours=3))),
        # None of it counts when it contradicts itself.
        ("{replicas: 2, usage_based: {replicas: 2, duration: 5}}", ()),
        ("{schedule: [], usage_based: {replicas: 2, duration: 5}}", ()),
        ("{schedule: [{day: someday, time: 9-17, replicas: 1}]}", ()),
        ("{schedule: [{day: mon, time: 9-9, replicas: 1}]}", ()),
        ("{schedule: [{day: mon, time: 9-25, replicas: 1}]}", ()),
        ("{schedule: [{day: mon, timezone: Mars/Base, replicas: 1}]}", ()),
        ("{schedule: [{day: mon, replicas: -1}]}", ()),
        ("{usage_based: {trigger: moonrise, replicas: 2, duration: 5}}", ()),
        ("{usage_based: {replicas: 2}}", ()),
        ("{}", ()),
        ("4", ()),
    ],
)
def test_idle_runners(idle: str, read: object) -> None:
    assert runner(idle=idle).idle == read


def test_an_hour_of_the_week() -> None:
    night = IdleTime(1, frozenset({4}), 22, 6, "Europe/Rome")  # Friday night, in Rome
    friday = datetime(2026, 11, 20, tzinfo=UTC)
    hours = [hour for hour in range(48) if night.on(friday + timedelta(hours=hour))]
    assert hours == list(range(21, 29))  # 22:00 in Rome is 21:00 UTC in winter
    office = IdleTime(1, frozenset(range(5)), 9, 17)
    week = [hour for hour in range(7 * 24) if office.on(datetime(2026, 11, 16, tzinfo=UTC) + timedelta(hours=hour))]
    assert week == [day * 24 + hour for day in range(5) for hour in range(9, 17)]


def test_idle_runners_of_now_within_what_the_site_gives() -> None:
    files = {(ORGANIZATION, f"{ORGANIZATION}/{name}"): community() for name in ("a", "b")}
    site = site_of(
        most_idle=5,
        timezone="Europe/Rome",
        sets={
            "gpuyard-v100": {
                "flavors": ["gpu_large"], "images": ["noble"],
                "idle": [
                    {"count": 3, "hours": "22-6"},
                    {"count": 1, "days": "sun"},
                    {"count": 2, "days": "sun", "hours": "13-14"},
                ],
            }
        },
    )  # fmt: skip
    never = lambda repository, kind: None  # noqa: E731

    def counts(now: datetime, last: object = never) -> list[tuple[str, int, str]]:
        idle = idle_runners(site, files, last, now)  # type: ignore[arg-type]
        return [(runner.spec.kind, runner.count, runner.repository) for runner in idle]

    assert counts(NOW) == [("gpuyard-v100", 2, "")]  # a Sunday, 13:00 in Rome
    assert counts(NOW + timedelta(hours=10)) == [("gpuyard-v100", 3, "")]
    monday = NOW + timedelta(days=1)
    assert counts(monday) == [("cirun-openstack-gpu-dev", 2, "")]  # of the organisation, once for all its repositories
    recent = lambda repository, kind: monday - timedelta(minutes=179)  # noqa: E731
    assert counts(monday, recent) == [("cirun-openstack-gpu-dev", 2, ""), ("cirun-openstack-gpu-burst", 1, "")]
    site = site_of(most_idle=1)
    assert counts(monday, recent) == [("cirun-openstack-gpu-dev", 1, "")]
    site = site_of()
    assert counts(monday, recent) == []
    own = read(RepositoryFiles(GOOD + "    idle: {replicas: 3}\n"))
    files = {(ORGANIZATION, f"{ORGANIZATION}/{name}"): own for name in ("a", "b")}
    site = site_of(most_idle=5)
    idle_groups = idle_runners(site, files, never, NOW)
    assert [(group.repository, group.count, group.labels) for group in idle_groups] == [
        (f"{ORGANIZATION}/a", 3, ("cirun-gpu",)), (f"{ORGANIZATION}/b", 2, ("cirun-gpu",)),
    ]  # fmt: skip
    guarded = Configuration(own.own, access=read_access("version: 1"))
    assert idle_runners(site, dict.fromkeys(files, guarded), never, NOW) == []  # a repository's own are not used then


CASES = {
    "runner": (GOOD, 2),
    "not-yaml": ("runners: [", 1),
    "wrong-form": ("runners:\n- {name: r, cloud: openstack, instance_type: 5, machine_image: i, labels: [l]}", 2),
    "unknown-key": (GOOD + "    lables: [x]\n", 9),
    "ignored-key": (GOOD + "    workflow: x.yml\n", 9),
    "no-runners": ("runners: []", 1),
    "key-missing": ("runners:\n\n- {name: r, cloud: openstack, instance_type: f, labels: [l]}", 3),
    "restriction-unknown": (GOOD + "    run_only_when_triggered_by: core\n", 9),
    "name-repeated": (GOOD + GOOD.partition("\n")[2].replace("cirun-gpu", "cirun-other"), 9),
    "same-labels": (GOOD + GOOD.partition("\n")[2].replace("gpu-runner", "other"), 9),
    "no-labels": (GOOD.partition("    labels")[0], 2),
    "general-labels": (GOOD.replace("cirun-gpu", "linux"), 7),
    "label-suffix": (GOOD.replace("cirun-gpu", "cirun-gpu--x"), 8),
    "hosted-label": (GOOD.replace("cirun-gpu", "ubuntu-latest"), 8),
    "other-cloud": (GOOD.replace("openstack", "aws"), 2),
    "lists-differ": (GOOD.replace("gpu_large", "[a, b]").replace("noble", "[x, y, z]"), 2),
    "gpu-ignored": (GOOD + "    gpu: nvidia-tesla-t4\n", 9),
    "region-ignored": (GOOD.replace("RegionOne", "[a, b]"), 6),
    "extra-config-ignored": (GOOD + "    extra_config: {provision_via: pull_from_api}\n", 9),
    "too-many": ("runners:\n" + "- {name: r, cloud: aws}\n" * 201, 202),
}
ACCESS = """\
version: 1
policies:
  - id: p
    repo: a
    users: [ada]
access_control:
  - resource: gpu-runner
    policies: [p]
"""
ACCESS_CASES = {
    "runner": (ACCESS, 2),
    "runner-unused": (ACCESS, 2),
    "unknown-version": (ACCESS.replace("1", "2"), 1),
    "policy-repeated": (ACCESS.replace("access_c", "  - {id: p, repo: b, users: [x]}\naccess_c"), 6),
    "policy-for-nobody": (ACCESS.replace("    users: [ada]\n", ""), 3),
    "policy-unknown": (ACCESS.replace("[p]", "[p, q]"), 8),
    "policy-unused": (ACCESS.replace("[p]", "[]"), 3),
    "resource-repeated": (ACCESS + "  - {resource: gpu-runner, policies: [p]}\n", 9),
    "resource-unknown": (ACCESS.replace("gpu-runner", "cpu-runner"), 7),
    "resource-missing": (ACCESS.replace("gpu-runner", "cpu-runner"), 2),
    "role-unknown": (ACCESS + "", 0),
    "users-not-on-github": (ACCESS.replace("users: [ada]", "users_from_json: https://example.org/users.json"), 5),
}
ACCESS_CASES["role-unknown"] = (ACCESS.replace("users: [ada]", "roles: [maintainer]"), 5)
SITE_CASES = {
    "runner": (GOOD, 2),
    "flavor-unknown": (GOOD.replace("gpu_large", "gpu_huge"), 2),
    "flavor-without-gpu": (GOOD.replace("gpu_large", "cpu_large"), 2),
    "flavor-not-allowed": (GOOD.replace("gpu_large", "gpu_pair"), 2),
    "image-not-allowed": (GOOD.replace("noble", "jammy"), 2),
    "too-many-idle": (GOOD + "    idle: {replicas: 2}\n", 2),
}
SITE = site_of(most_idle=1, allowed={"flavors": ["gpu_large"], "images": ["noble"]})


@pytest.mark.parametrize("code", [*CASES, *ACCESS_CASES, *SITE_CASES])
def test_every_finding_has_its_line_its_reason_and_what_to_do(code: str) -> None:
    if code in ACCESS_CASES:
        text, line = ACCESS_CASES[code]
        files = {".cirun.yml" if code == "runner-unused" else ".cirun.global.yml": GOOD, ".access.yml": text}
    else:
        text, line = (CASES | SITE_CASES)[code]
        files = {".cirun.yml": text}
    findings = lint_files(read_files(files), SITE if code in SITE_CASES else None)
    assert f"{line} {code}" in lines(findings), lines(findings)
    finding = next(candidate for candidate in findings if candidate.code == code)
    assert finding.severity is RULES[code].severity
    assert len(finding.reason) > 15
    assert finding.object == f"{finding.payload['file']}:{line}"


def test_every_rule_has_its_case() -> None:
    permission_codes = {
        "permission-missing",
        "permission-useful",
        "permission-unknown",
    }  # in test_github_permissions.py
    assert RULES.keys() - permission_codes == CASES.keys() | ACCESS_CASES.keys() | SITE_CASES.keys()


@pytest.mark.parametrize(
    "access", [ACCESS.replace("gpu-runner", "other"), ACCESS.replace("[p]", "[q]"), ACCESS.replace("[p]", "[]"), "- no"]
)
def test_a_runner_that_no_policy_gives_to_anybody_is_not_called_ok(access: str) -> None:
    findings = lint_files(read_files({".cirun.yml": GOOD, ".cirun.global.yml": GOOD, ".access.yml": access}))
    assert [finding.code for finding in findings if finding.code == "runner"] == []


def test_every_rule_is_in_the_manuals_table_as_it_is() -> None:
    text = (Path(__file__).parents[3] / "docs/how-to/configure-runners.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| ((?:error|warning|note|ok) \| .*) \|$", text, re.M))
    assert rows == {rule.id: f"{rule.severity} | {rule.sentence}" for rule in RULES.values()}


def test_one_bad_entry_does_not_spoil_the_others() -> None:
    file = read_cirun(GOOD + "  - 5\n  - {name: 7, cloud: openstack}\n  - {name: w, cloud: aws, labels: {a: b}}\n")
    assert [(runner.name, runner.cloud, bool(runner.ways)) for runner in file.runners] == [
        ("gpu-runner", "openstack", True), ("w", "aws", False),
    ]  # fmt: skip
    policies = read_access(ACCESS.replace("access_c", "  - 5\n  - {id: [], repo: b}\naccess_c"))
    assert [policy.id for policy in policies.policies] == ["p"]
    assert policies.readable


def test_anchors_and_merges_are_understood() -> None:
    text = """\
base: &base {cloud: openstack, machine_image: noble}
runners:
  - {<<: *base, name: a, instance_type: f, labels: &labels [cirun-a]}
  - <<: *base
    name: b
    instance_type: g
    labels: *labels
    gpu: x
"""
    file = read_cirun(text)
    assert [(runner.name, runner.ways, runner.line) for runner in file.runners] == [
        ("a", (Way("f", "noble"),), 3), ("b", (Way("g", "noble"),), 4),
    ]  # fmt: skip
    assert lines(file.findings) == ["1 unknown-key", "8 gpu-ignored", "4 same-labels"]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(["A: &A [x]", *(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in pairwise("ABCDEFGHI"))]),
        "a: &a [*a]",
        "[" * 60_000,
        "[ #]\n" * 10_000,
        '["]", ' * 8_000,
        "{a: " * 3000,
        "- " * 20_000,
        "? " * 20_000,
        "&a " * 10_000,
        "!!python/object/apply:os.system ['true']",
        "!!binary x",
        "!!timestamp x",
        "!!int x",
        "a: 0o9\nb: " + "9" * 5000,
        "a: .inf\nb: 1e999999999\nc: 2026-13-45",
        "a: 1\na: 2",
        "\x00",
        "\ud800",
        "%YAML 9.9\n---\na",
        "a\n---\nb",
        "runners: {a: b}",
        "runners: [[[]]]",
        "x" * 70_000,
        "a: |\n" + " x\n" * 15_000,
        "'" * 60_000,
        "#" * 60_000,
        "a:" * 30_000,
        "\t" * 60_000,
        "\n" * 60_000,
        "{" + "a: b, " * 9_000,
    ],
)  # fmt: skip
def test_hostile_files_are_read_in_no_time(text: str) -> None:
    start = process_time()
    for read_it in (read_cirun, read_access):
        file = read_it(text)
        assert all(finding.object and finding.reason.isprintable() for finding in file.findings)
    assert process_time() - start < 6


@pytest.mark.parametrize("end", ["\r", "\r\n", "\x85", "\u2028", "\u2029", "\n"])
def test_values_are_counted_before_they_are_read_whatever_ends_the_lines(end: str) -> None:
    """The ends of lines that ruamel.yaml 0.18 knows (reader.py, scanner.py)."""
    start = process_time()
    (finding,) = read_cirun(end.join(f"k{n}:" for n in range(7_900))).findings
    assert "values, by its lines" in finding.reason
    assert process_time() - start < 0.5


KEYS = st.sampled_from(
    ["runners", "name", "cloud", "instance_type", "machine_image", "labels", "idle", "schedule", "usage_based", "day",
     "time", "replicas", "duration", "preemptible", "region", "gpu", "extra_config", "version", "policies",
     "access_control", "id", "repo", "teams", "roles", "users", "users_from_json", "pull_request", "resource"]
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20),
    st.sampled_from(["openstack", "aws", "mon-fri", "9-17", "cirun-x", "--", "linux", "admin"]),
)  # fmt: skip
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=6)),
    max_leaves=30,
)


@settings(max_examples=60, deadline=None)
@given(tree=st.dictionaries(KEYS, TREES, max_size=5))
def test_files_of_any_shape_are_read(tree: dict[str, object]) -> None:
    text = json.dumps(tree)  # JSON is YAML, but for what it writes for infinities: all the better
    files = read(RepositoryFiles(text, text, text))
    assert files.access is not None
    for finding in files.findings:
        assert finding.code in RULES
        assert finding.reason.isprintable()
    lint_files(read_files({".cirun.yml": text, ".cirun.global.yml": text, ".access.yml": text}), SITE)
    configurations = {(ORGANIZATION, f"{ORGANIZATION}/a"): files}
    idle_runners(SITE, configurations, lambda repository, kind: NOW, NOW)


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    read(RepositoryFiles(text, text, text))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_mangled_files_are_read(data: st.DataObject) -> None:
    text = (COMMUNITY / data.draw(st.sampled_from([".cirun.global.yml", ".access.yml"]))).read_text()[:1500]
    at, size = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 30))
    mangled = text[:at] + data.draw(st.text(max_size=10)) + text[at + size :]
    read(RepositoryFiles(mangled, mangled, mangled))


SCALARS = st.one_of(
    st.text(max_size=8).map(json.dumps),
    st.sampled_from((1, 99, 101, 4000, 4301, 5000)).map(lambda count: "9" * count),
    st.builds(lambda base, count: base + "7" * count, st.sampled_from(("0x", "0o", "-0x")), st.integers(1, 9000)),
    st.integers(1, 3000).map(lambda count: "1" + ":59" * count),
    st.sampled_from(
        (
            "1e999", "-.inf", ".nan", "1_000", "~", "yes", "2026-13-45", "2026-11-23", "2026-11-23T99:00:00Z",
            "!!int x", "!!float 1e5000", "!!timestamp x", "!!binary ====", "!!python/object:os.system x", "*a", "&a 1",
            "!!set {a}", "!!omap [a: 1]", "!!pairs [a: 1]", "mon-sun", "9-17", "Europe/Berlin", "openstack", "---", "?",
        )
    ),
)  # fmt: skip
NAMED = st.one_of(
    KEYS,
    st.sampled_from(
        (
            *"runners",
            "policies",
            "access_control",
            "name",
            "cloud",
            "labels",
            "idle",
            "schedule",
            "users",
            "roles",
            "<<",
        )
    ),
).map(json.dumps)
WRITTEN = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda parts: f"[{', '.join(parts)}]"),
        st.lists(st.tuples(st.one_of(NAMED, SCALARS), inner), max_size=5).map(
            lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
        ),
    ),
    max_leaves=12,
)


@given(runners=st.lists(WRITTEN, max_size=3), policies=WRITTEN, control=WRITTEN)
def test_files_with_any_value_anywhere_are_read(runners: list[str], policies: str, control: str) -> None:
    """As YAML that a person with bad intentions writes: numbers too long to be shown, odd tags, aliases, merges."""
    cirun = "anchor: &a 1\nrunners:\n" + "".join(f"  - {runner}\n" for runner in runners)
    access = f"version: 1\npolicies: {policies}\naccess_control: {control}\n"
    files = read(RepositoryFiles(cirun, access, access))
    assert all(finding.reason.isprintable() and len(finding.reason) < 5000 for finding in files.findings)
    lint_files(read_files({".cirun.yml": cirun, ".cirun.global.yml": cirun, ".access.yml": access}), SITE)


@pytest.mark.parametrize("number", ["9" * 4000, "9" * 4301, "0x" + "f" * 60_000, "1" * 101 + ".5"])
@pytest.mark.parametrize(
    "place", ["runners: [{{name: {}}}]", "runners: [{{gpu: {}}}]", "{}: 1", "runners: [{{labels: [{}]}}]", "{}"]
)
def test_a_number_that_cannot_be_shown_makes_a_file_unreadable(number: str, place: str) -> None:
    file = read_cirun(place.format(number))
    assert (file.readable, [finding.code for finding in file.findings]) == (False, ["not-yaml"])
    # A key of so many characters is none in YAML, which says so first.
    assert ("a number of" in file.findings[0].reason) is (not place.startswith("{}: ") or len(number) < 1000)


@pytest.mark.parametrize(
    "text", ["[" + "a," * 30_000 + "]", "- a\n" * 16_000, "- - - a\n" * 8000, "runners:\n" + " - name:\n" * 7000]
)
def test_files_of_nothing_but_small_values_are_not_even_begun(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ruamel.yaml.YAML.compose", lambda *args: pytest.fail("it takes a second"))
    assert "more than 6000 values" in read_cirun(text).findings[0].reason
