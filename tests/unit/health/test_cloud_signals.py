"""What looks at Nova give away about GPUs, held against Nova's own words and waits."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest

from gpuyard.health.cloud_signals import ABORTED, LASTS, TRIES, CloudSignals, HostUse
from gpuyard.health.limits import SitePlace
from gpuyard.health.verdicts import SignalVerdicts
from gpuyard.model.world import HostService, Provider, Server, Snapshot
from gpuyard.openstack.rows import ServerRow
from gpuyard.site.health_rules import SiteHealth
from tests.support.services import compute_utils, nova_conf, nova_exception

MONDAY = datetime(2026, 11, 2, 8, tzinfo=UTC)
PLACE = SitePlace("h", "0000:01:00.0", "p", "s1")
OTHER = SitePlace("h", "0000:02:00.0", "p", "s2")
PROVIDERS = {name: Provider(name, name, "h") for name in ("h", "h_0000:01:00.0", "h_0000:02:00.0")}
GPU = "h_0000:01:00.0"
TEN = timedelta(seconds=10)


def server(
    id: str, status: str, project: str = "p-alpha", *, task: str = "", fault: str = "", launched: bool = True
) -> Server:
    start = MONDAY - timedelta(days=9) if launched else None
    return Server(
        id, id, status, "h", "name", "ada", "gpu", MONDAY, start, project_id=project, task=task, fault=fault
    )  # fmt: skip


def seen(now: datetime, server: Server | None, gpus: Iterable[str] = (GPU,), *, up: bool = True) -> Snapshot:
    holders = dict.fromkeys(gpus, server.id) if server and server.status != "ERROR" else {}
    servers = {server.id: server} if server else {}
    return Snapshot(
        now, PROVIDERS, frozenset(), holders, frozenset(), {}, servers, {"h": HostService("h", up, True)}
    )  # fmt: skip


class Watch:
    """A host and Nova, looked at every ten seconds."""

    def __init__(self, rules: SiteHealth | None = None) -> None:
        self.signals, self.now, self.use = CloudSignals(SignalVerdicts(rules)), MONDAY, HostUse(MONDAY, False)
        self.codes: list[str] = []

    def see(self, status: str, in_use: bool, lasts: timedelta = TEN, *, task: str = "", up: bool = True) -> None:
        for _ in range(lasts // TEN):
            self.now += TEN
            self.use = self.use.then(self.now, in_use)
            snapshot = seen(self.now, server("s", status, task=task), up=up)
            self.codes += [
                observation.code for observation in self.signals.look([PLACE], snapshot, {PLACE.name: self.use})
            ]


def test_stopping_and_starting_says_nothing_of_a_gpu() -> None:
    """`launched_at` is that of days ago: Nova moves it at spawn, rescue, resize and revert only."""
    watch = Watch()
    for _ in range(5):
        watch.see("SHUTOFF", False, timedelta(hours=8))
        watch.see("SHUTOFF", False, task="powering-on")
        watch.see("ACTIVE", False)  # the host looks again a moment later
        watch.see("ACTIVE", True, timedelta(hours=1))
        watch.see("SUSPENDED", False, timedelta(hours=1))
        watch.see("ACTIVE", False)
        watch.see("ACTIVE", True, timedelta(hours=1))
        watch.see("ACTIVE", False, task="rebooting_hard")
        watch.see("ACTIVE", False)
        watch.see("ACTIVE", True, timedelta(hours=1))
    assert watch.codes == []


def test_nova_may_be_late_to_see_a_power_off() -> None:
    """A server whose host was rebooted, or whose guest shut itself down, is ACTIVE until Nova compares power states."""
    interval = timedelta(seconds=nova_conf.CONF.sync_power_state_interval)
    watch = Watch()
    watch.see("ACTIVE", True, timedelta(minutes=5))
    watch.see("ACTIVE", False, timedelta(hours=3), up=False)
    watch.see("ACTIVE", False, interval + timedelta(minutes=2))
    watch.see("SHUTOFF", False, timedelta(hours=1))
    assert watch.codes == []


def test_a_gpu_that_no_process_has_open_below_an_active_server_is_seen() -> None:
    watch = Watch()
    watch.see("ACTIVE", True, timedelta(minutes=5))
    watch.see("ACTIVE", False, LASTS)
    assert watch.codes == []
    watch.see("ACTIVE", False)
    assert watch.codes == ["gone-under"]
    watch.see("ACTIVE", True)
    watch.see("ACTIVE", False, LASTS)
    assert watch.codes == ["gone-under"]


def test_what_a_host_said_long_ago_says_nothing_of_now() -> None:
    watch = Watch()
    watch.see("ACTIVE", False, timedelta(minutes=10))
    for _ in range(200):
        watch.now += TEN
        assert not watch.signals.look([PLACE], seen(watch.now, server("s", "ACTIVE")), {PLACE.name: watch.use})


def fault_of(error: Exception) -> str:
    """As Nova writes it down, with what an admin is shown besides."""
    message = compute_utils.exception_to_dict(error)["message"]
    row = {
        "id": "s", "name": "s", "status": "ERROR", "OS-EXT-STS:task_state": None, "OS-EXT-SRV-ATTR:host": None,
        "flavor": {"original_name": "gpu", "vcpus": 1, "ram": 1, "disk": 1, "ephemeral": 0, "swap": 0},
        "tenant_id": "p", "user_id": "u",
        "created": "2026-11-02T08:00:00Z", "OS-SRV-USG:launched_at": None, "updated": "2026-11-02T08:00:00Z",
        "fault": {"message": message, "code": 500, "details": f"Traceback (most recent call last):\n{error}\n"},
    }  # fmt: skip
    return ServerRow.of(row).named("p", "u").fault


def retried(reason: str) -> str:
    """What nova/scheduler/utils.py (`populate_retry`, nova 34.0.0) says when the last try has failed."""
    message = f"Exceeded max scheduling attempts 1 for instance {'0' * 36}. Last exception: {reason}"
    return fault_of(nova_exception.MaxRetriesExceeded(reason=message))


QEMU = retried(
    "internal error: QEMU unexpectedly closed the monitor (vm='instance-00000001'): 2026-11-02T08:00:00.000000Z "
    'qemu-system-x86_64: -device {"driver":"vfio-pci","host":"0000:01:00.0","id":"hostdev0"}: vfio 0000:01:00.0: '
    "error getting device from group 1: Connection timed out"
)
"""hw/vfio/pci.c and hw/vfio/container.c of QEMU have the words; the prefix names the device."""
IMAGE = fault_of(nova_exception.BuildAbortException(instance_uuid="s", reason="Image i is unacceptable: it is no disk"))
UNKNOWN = retried("Exhausted all hosts available for retrying build failures for instance s.")


def test_the_faults_are_as_nova_has_them() -> None:
    assert IMAGE.startswith(ABORTED)
    assert len(QEMU.splitlines()[0]) == 255
    assert PLACE.address not in QEMU.splitlines()[0], "Nova cuts it off"
    assert PLACE.address in QEMU


def failing(*starts: tuple[str, str], gpus: tuple[str, ...] = (GPU,), rules: SiteHealth | None = None) -> list[str]:
    """Codes and GPUs, after servers of (project, fault) have failed, one after the other."""
    signals, now, observations = CloudSignals(SignalVerdicts(rules)), MONDAY, []
    for number, (project, fault) in enumerate(starts):
        for status in ("BUILD", "ERROR"):
            now += TEN
            instance = server(f"s{number}", status, project, fault=fault if status == "ERROR" else "", launched=False)
            observations += signals.look([PLACE, OTHER], seen(now, instance, gpus), {})
    return [f"{observation.code} {observation.address}" for observation in observations]


@pytest.mark.parametrize(
    ("starts", "codes"),
    [
        ([("a", UNKNOWN)] * 9, []),  # one project, one broken image
        ([("a", ""), ("a", ""), ("a", "")], []),
        ([("a", IMAGE), ("b", IMAGE), ("c", IMAGE)], []),
        ([("a", UNKNOWN), ("a", UNKNOWN), ("b", IMAGE)], []),
        ([("a", UNKNOWN), ("b", UNKNOWN), ("a", UNKNOWN)], ["creates-fail 0000:01:00.0"]),
        ([("a", QEMU)] * TRIES, ["creates-fail 0000:01:00.0"]),
        ([("a", QEMU)] * (TRIES - 1), []),
    ],
)  # fmt: skip
def test_users_mistakes_are_not_a_gpus(starts: list[tuple[str, str]], codes: list[str]) -> None:
    assert failing(*starts) == codes


def test_of_a_server_with_two_gpus_the_one_that_is_named_counts() -> None:
    both = ("h_0000:01:00.0", "h_0000:02:00.0")
    assert failing(*[(project, UNKNOWN) for project in "abc"], gpus=both) == []
    assert failing(*[("a", QEMU)] * TRIES, gpus=both) == ["creates-fail 0000:01:00.0"]


def test_one_that_starts_ends_the_row() -> None:
    signals, now = CloudSignals(), MONDAY
    for number, project in enumerate("abcabc"):
        for status in ("BUILD", "ACTIVE" if number % 2 else "ERROR"):
            now += TEN
            assert not signals.look([PLACE], seen(now, server(f"s{number}", status, project, launched=False)), {})


def test_thresholds_are_the_gpus_own() -> None:
    signals = {"creates-fail": {"threshold": 2}, "gone-under": {"threshold": "30 min"}}
    rules = SiteHealth.model_validate({"gpus": {PLACE.name: {"signals": signals}}})
    assert failing(*[("a", QEMU)] * 2) == []
    assert failing(*[("a", QEMU)] * 2, rules=rules) == ["creates-fail 0000:01:00.0"]
    watch = Watch(rules)
    watch.see("ACTIVE", False, LASTS + 2 * TEN)
    assert watch.codes == []
    watch.see("ACTIVE", False, LASTS)
    assert set(watch.codes) == {"gone-under"}
