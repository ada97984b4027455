"""User data that makes a server check its own image, and the judgement of its console output. Pure.

Anybody in the server can write to the console, so only lines with the check's nonce count. A server that did not
come to the end of its check has one finding; otherwise there is one for each thing that an image must do.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuyard.guest.cloud_config import FOLDER, cloud_config, guest_file, script
from gpuyard.guest.console import plain_lines
from gpuyard.model.finding import Finding, Severity
from gpuyard.site.image_rules import ImageBuild

NONCE = re.compile(r"[0-9a-f]{8,32}")
MARK = "gpuyard-image:"
UNIT = "gpuyard-image-check.service"
HOST_NAME = "gpuyard-check"
WRITTEN = "of the config drive"
"""Content of the file that cloud-init is to write."""
SECTOR = 512
SLACK = 0.25
"""Share of the disk that a file system keeps for itself, and more. One that has not grown has less than half of the
disk."""
LAST_LINES = 15
NO_GPU = ("No such device", "No NVIDIA GPU found")
"""Messages of loading a driver, or of the kernel's log, when there is no GPU for it."""
NEED_GPU = {"nvidia-persistenced.service", "systemd-modules-load.service"}
"""Units of images with the driver, which fail where there is no GPU."""


def user_data(nonce: str) -> str:
    """Return the user data of the server that is booted: it checks itself, prints the results, and switches itself
    off."""
    if not NONCE.fullmatch(nonce):
        raise ValueError(f"{nonce!r} is not 8 to 32 digits of hexadecimal")
    document = {
        "write_files": [
            guest_file(f"{FOLDER}/settings", f"NONCE={shlex.quote(nonce)}\n"),
            guest_file(f"{FOLDER}/written", WRITTEN),
            guest_file(f"{FOLDER}/check", script("gpuyard.images", "guest/check.sh")),
            guest_file(f"/run/systemd/system/{UNIT}", script("gpuyard.images", f"guest/{UNIT}")),
        ],
        "runcmd": [["systemctl", "daemon-reload"], ["systemctl", "start", "--no-block", UNIT]],
    }
    return cloud_config(document)


@dataclass(frozen=True)
class ImageCheckOutput:
    """Parsed console output of the server."""

    words: Mapping[str, str]
    pci: frozenset[str]
    units: Mapping[str, tuple[str, ...]]
    """Unit -> whether it is enabled, its state, how often it was restarted."""
    complete: bool
    """Whether the check came to its end."""
    tail: tuple[str, ...] = field(default=())
    """The last lines of the console."""


def read_console(text: str, nonce: str) -> ImageCheckOutput:
    """Parse a console. Of a word that comes twice the last one counts."""
    words: dict[str, str] = {}
    pci: set[str] = set()
    units: dict[str, tuple[str, ...]] = {}
    lines = plain_lines(text)
    for line in lines:
        _, mark, rest = line.partition(f"{MARK} {nonce} ")
        word, _, value = rest.partition(" ")
        if not mark:
            continue
        if word == "pci":
            pci.add(value.strip())
        elif word == "unit":
            name, *states = value.split()[:4] or [""]
            units[name] = tuple(states)
        else:
            words[word] = value.strip()
    tail = tuple(line for line in lines if line)[-LAST_LINES:]
    return ImageCheckOutput(words, frozenset(pci), units, "over" in words, tail)


def judge(
    output: ImageCheckOutput, build: ImageBuild | None, device: str, switched_off: bool, module: str = ""
) -> list[Finding]:
    """Return one finding for each thing that an image must do. `build`: its definition; None when it is unknown.

    `device`: the PCI id of one that the server was given. `module`: the kernel module of NVIDIA's driver that the
    image was built with, open or proprietary.
    """
    if not output.complete:
        return [_not_booted(output)]
    findings = [
        _boots(output, switched_off),
        _cloud_init(output),
        _root(output),
        _bus(output, device),
        _failed_units(output, build),
    ]
    if build is not None and build.driver is not None:
        findings.append(_driver(output, build.driver.branch, module))
    if build is not None and build.runner is not None:
        findings.append(_runner(output))
    if build is not None and build.agent:
        findings.append(_agent(output))
    return findings


def _not_booted(output: ImageCheckOutput) -> Finding:
    if "begun" in output.words:
        reason = "the server began to look at itself and never came to an end"
    elif output.tail:
        reason = "the server came up, and its cloud-init did not start what the config drive told it to"
    else:
        reason = "the serial console of the server says nothing"
    remedy = (
        "look at the console; its last lines: " + " | ".join(output.tail[-3:])
        if output.tail
        else ("is the image for this architecture and firmware, and is its console on ttyS0?")
    )
    return Finding("image-boots", Severity.ERROR, "", reason, remedy, {"console": list(output.tail)})


def _boots(output: ImageCheckOutput, switched_off: bool) -> Finding:
    words = output.words
    summary = f"kernel {words.get('kernel', '?')}, all done {words.get('seconds', '?')} s after its start"
    if not switched_off:
        return Finding("image-boots", Severity.WARNING, "", f"{summary}; it did not switch itself off when told to")
    return Finding("image-boots", Severity.OK, "", summary, payload={"seconds": words.get("seconds", "")})


def _cloud_init(output: ImageCheckOutput) -> Finding:
    words = output.words
    source, errors = words.get("datasource", ""), words.get("cloud-init-errors", "")
    remedy = "log in to a server of the image, and see 'cloud-init status --long' and /var/log/cloud-init.log"
    if "ConfigDrive" not in source:
        reason = f"cloud-init has taken its data from {source or 'nowhere'}, not from the config drive"
        return Finding("cloud-init", Severity.ERROR, "", reason, remedy)
    if errors.strip():
        return Finding("cloud-init", Severity.ERROR, "", f"cloud-init has failed in parts: {errors}", remedy)
    wrong = [
        f"{what} is {words.get(word, '')!r} instead of {expected!r}"
        for what, word, expected in (
            ("the host name", "host-name", HOST_NAME),
            ("the file that it was to write", "written", WRITTEN),
        )
        if words.get(word) != expected
    ]
    if wrong:
        return Finding("cloud-init", Severity.ERROR, "", f"cloud-init ended, and {' and '.join(wrong)}", remedy)
    return Finding("cloud-init", Severity.OK, "", f"has done all that the config drive asks for ({source})")


def _root(output: ImageCheckOutput) -> Finding:
    size, sectors, *_ = [*output.words.get("root", "").split(), "", ""]
    if not (size.isdigit() and sectors.isdigit() and len(size) < 20 and len(sectors) < 20 and int(sectors)):
        reason = f"how large the root file system is cannot be read: {output.words.get('root', '')!r}"
        return Finding("root-grows", Severity.ERROR, "", reason, "is / on a partition of a disk?")
    root, disk = int(size), int(sectors) * SECTOR
    summary = f"the root file system has {root / 2**30:.1f} GiB of the disk's {disk / 2**30:.1f} GiB"
    if root < disk * (1 - SLACK):
        remedy = "is growpart in the image, is the root partition the last one, and is cloud-init's growpart on?"
        return Finding("root-grows", Severity.ERROR, "", f"{summary}: it has not grown with its disk", remedy)
    return Finding("root-grows", Severity.OK, "", summary)


def _bus(output: ImageCheckOutput, device: str) -> Finding:
    if "no-lspci" in output.words:
        return Finding("pci-device", Severity.WARNING, "", "there is no lspci in the image", "add the package pciutils")
    if device not in output.pci:
        reason = f"lspci does not show the device {device} that the server was given"
        return Finding("pci-device", Severity.ERROR, "", reason, "see the kernel's log of a server of the image")
    return Finding("pci-device", Severity.OK, "", f"lspci shows the device {device} that the server was given")


def _failed_units(output: ImageCheckOutput, build: ImageBuild | None) -> Finding:
    expected = NEED_GPU if build is not None and build.driver is not None else set()
    failed = [unit for unit in output.words.get("failed-units", "").split() if unit not in expected]
    if failed:
        remedy = "log in to a server of the image, and see 'systemctl status' of them"
        return Finding("units", Severity.WARNING, "", f"units of systemd have failed: {', '.join(failed)}", remedy)
    return Finding("units", Severity.OK, "", "no unit of systemd has failed")


def _driver(output: ImageCheckOutput, branch: str, module: str) -> Finding:
    version, _, license = output.words.get("driver-module", "").partition(" ")
    if not version:
        reason = "there is no NVIDIA module for the kernel that the image boots"
        return Finding("driver", Severity.ERROR, "", reason, "look for dkms in the log of the build")
    kind = "proprietary" if license.strip() == "NVIDIA" else "open"
    summary = f"NVIDIA's {kind} kernel module {version}"
    wrong = [] if version.split(".")[0] == branch else [f"the image was built with branch {branch}"]
    wrong += [] if module in ("", kind) else [f"the image was built with the {module} one"]
    wrong += [] if output.words.get("driver-smi") else ["there is no nvidia-smi"]
    wrong += [] if output.words.get("driver-held", "0") != "0" else ["an upgrade would change it: it is not held"]
    if wrong:
        return Finding("driver", Severity.ERROR, "", f"{summary}: {', '.join(wrong)}", "build the image anew")
    if output.words.get("driver-loaded", "0") != "0":
        return Finding("driver", Severity.OK, "", f"{summary} is loaded")
    why = output.words.get("driver-load", "")
    if any(words in why for words in NO_GPU):
        return Finding("driver", Severity.OK, "", f"{summary} loads and finds no GPU, as there is none here")
    return Finding("driver", Severity.ERROR, "", f"{summary} cannot be loaded: {why}", "is it built for this kernel?")


def _runner(output: ImageCheckOutput) -> Finding:
    owner, _, script = output.words.get("runner", "").partition(" ")
    wrong = [] if owner == "runner" else [f"/opt/actions-runner is {owner or 'not there'}, not of the user runner"]
    wrong += [] if script.strip() == "run.sh" else ["it has no run.sh"]
    wrong += [] if output.words.get("updates") == "masked" else ["apt upgrades the server while its job runs"]
    if wrong:
        return Finding("runner", Severity.ERROR, "", "; ".join(wrong), "build the image anew")
    return Finding("runner", Severity.OK, "", "actions/runner is there, its user's, and nothing upgrades the server")


def _agent(output: ImageCheckOutput) -> Finding:
    enabled, active, restarts, *_ = [*output.units.get("gpuyard-agent.service", ()), "", "", ""]
    if enabled != "enabled" or active != "active" or restarts != "0":
        state = f"{enabled or 'not there'}, {active or 'unknown'}, started again {restarts or '?'} times"
        remedy = "log in to a server of the image, and see 'journalctl -u gpuyard-agent'"
        return Finding("agent", Severity.ERROR, "", f"gpuyard-agent does not run: {state}", remedy)
    return Finding("agent", Severity.OK, "", "gpuyard-agent runs, and waits until it is asked")


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Sort the worst first; findings of one severity keep their order."""
    return sorted(findings, key=lambda finding: finding.severity.rank)
