"""The whole way on an installed Debian: apply, reboot by its own GRUB, verify, undo, reboot. Some five minutes.

The host has two graphics cards with the same ids, each with an audio function, and the drivers of the kernel take all
four when it boots. One card is given away, the host keeps the other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import gpuyard
from gpuyard.host.recording import replay
from gpuyard.model.host import Inventory
from tests.support.on_request import only_by
from tests.virtual_hypervisor import testing
from tests.virtual_hypervisor.installed import SOURCE, Installation, Result
from tests.virtual_hypervisor.topology import titan_xp_node

pytestmark = [pytest.mark.virtual, pytest.mark.slow, only_by("machine", "five minutes")]

GIVEN = ("0000:18:00.0", "0000:18:00.1")
KEPT = "0000:86:00.0"
NATIVE = {
    "0000:18:00.0": "bochs-drm",
    "0000:18:00.1": "snd_hda_intel",
    "0000:86:00.0": "bochs-drm",
    "0000:86:00.1": "snd_hda_intel",
}
# Whatever is configured, boots or keeps state; systemd's own changes with every boot.
FILES = "/boot /etc /usr/local /usr/lib/modules /var/lib -path /var/lib/systemd -prune -o"
ROOT_MOUNTED = "EXT4-fs (nvme0n1p1): mounted"
JOB = f"""\
#!/bin/bash -e
host() {{ PYTHONPATH={SOURCE}{Path(gpuyard.__file__).parent.parent} python3 -m gpuyard.host "$@"; }}
files() {{
    find {FILES} -type d -printf '%p %M %u %g\\n' -o -printf '%p %M %u %g %T@ %l\\n' | sort >$JOB/$1.names
    find {FILES} -type f -exec sha256sum {{}} + | sort >$JOB/$1.sums
}}
dmesg >$JOB/boot.log
host record --output $JOB/recording.json
"""


@dataclass(frozen=True)
class Boot:
    """What one boot showed, before its job did anything."""

    folder: Path
    result: Result

    def seen(self, recording: str = "recording") -> Inventory:
        return replay((self.folder / f"{recording}.json").read_text(encoding="utf-8"), recording)

    def drivers(self, recording: str = "recording") -> dict[str, str | None]:
        return {address: self.seen(recording).function(address).driver for address in NATIVE}

    @property
    def options(self) -> list[str]:
        return self.seen().facts.command_line.split()

    @property
    def log(self) -> str:
        """Of the kernel, from its start to the job."""
        return (self.folder / "boot.log").read_text(encoding="utf-8", errors="replace")

    def answer(self, verb: str) -> dict[str, Any]:
        """The last line that a verb printed: its result."""
        result: dict[str, Any] = json.loads((self.folder / verb).read_text(encoding="utf-8").splitlines()[-1])
        return result

    def files(self, when: str) -> set[str]:
        """Names with type, permissions, owner, time (not of folders) and target of a link; and checksums."""
        return {
            line for what in ("names", "sums") for line in (self.folder / f"{when}.{what}").read_text().splitlines()
        }


def difference(before: set[str], after: set[str]) -> list[str]:
    return [f"- {line}" for line in sorted(before - after)] + [f"+ {line}" for line in sorted(after - before)]


def boot(installation: Installation, job: str) -> Boot:
    result = installation.boot(JOB + job, timeout=600)
    assert result.status == 0, result.output
    return Boot(installation.last, result)


def test_a_prepared_host_survives_its_reboot_and_undo_makes_it_what_it_was(tmp_path: Path) -> None:
    build = testing.prepared()
    installation = Installation(build, testing.installed(build), titan_xp_node(exact=False), tmp_path)

    first = boot(installation, f"files before\nhost apply --yes --json --keep {KEPT} --iommu-pt >$JOB/apply\n")
    assert first.drivers() == NATIVE
    # The display's driver is there while the root is not yet: what we do must be in the initramfs to be in time.
    assert first.log.index("bochs-drm 0000:18:00.0") < first.log.index(ROOT_MOUNTED)
    assert first.log.index("snd_hda_intel 0000:18:00.1") > first.log.index(ROOT_MOUNTED)
    assert first.answer("apply")["changed"]
    assert first.answer("apply")["reboot"] == ["kernel option iommu=pt"]

    second = boot(
        installation,
        "host verify --json >$JOB/verify\nhost undo --yes --json >$JOB/undo\n"
        "host record --output $JOB/undone.json\nfiles after\n",
    )
    assert second.drivers() == NATIVE | dict.fromkeys(GIVEN, "vfio-pci")
    # Not taken back from the native drivers: they never had them.
    assert "bochs-drm 0000:18:00.0" not in second.log
    assert "snd_hda_intel 0000:18:00.1" not in second.log
    assert second.options == [*first.options, "iommu=pt"]
    findings = second.answer("verify")["findings"]
    assert {"iommu", "drivers", "opened"} <= {finding["code"] for finding in findings}
    assert [finding for finding in findings if finding["severity"] != "ok"] == []
    assert second.drivers("undone") == NATIVE
    assert difference(first.files("before"), second.files("after")) == []

    third = boot(installation, "files later\n")
    assert third.drivers() == NATIVE
    assert third.options == first.options
    assert difference(first.files("before"), third.files("later")) == []
