"""User data for a server that accepts GPUs, and the parser of what its checks print on the console. Pure.

Everything in a console is a guest's, and the guest's image is the site's. A line counts when it has the number of the
very attempt (`nonce`), which only this server was given: so nothing of an earlier one, or of an image that was made of
one, is taken for a verdict. The first verdict counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuyard.guest.cloud_config import FOLDER, GPU_CHECK, cloud_config, guest_file, script
from gpuyard.guest.console import plain_lines
from gpuyard.health.baseline import FACTS, Facts, is_worse

PREFIX = "gpuyard-accept: "
MOST_WORDS = 300
"""Characters of a reason."""
NONCE = re.compile(r"[0-9a-f]{32}", re.ASCII)
IDS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}", re.ASCII)
NUMBER = r"([0-9]{1,15}(?:\.[0-9]{1,6})?)"
FACT = re.compile(rf"fact ([a-z-]{{1,40}}) {NUMBER}(?: of {NUMBER})?", re.ASCII)
"""``fact link-width 8``: one of baseline.FACTS, of one GPU. ``fact link-width 8 of 16``: and what both ends of its link
can."""
CHECK_SECONDS, BURN_SECONDS = 90, 30


class GuestVerdict(StrEnum):
    """The verdict of the checks in the guest."""

    NONE = "none"
    """They have not ended, or did not come to the console."""
    OK = "ok"
    FAILED = "failed"
    """By the GPU's fault."""
    UNABLE = "unable"
    """By the image's fault: it cannot tell."""


@dataclass(frozen=True)
class AcceptanceOutput:
    """The verdict, the driver and the facts that a console has."""

    begun: bool = False
    """The checks have begun: image and cloud-init work."""
    verdict: GuestVerdict = GuestVerdict.NONE
    words: str = ""
    """The GPUs that there are, or what is wrong."""
    driver: str = ""
    """Version of the driver in the guest."""
    facts: Facts = field(default_factory=dict)
    """Facts of its GPUs that do not change by themselves; of several the worst."""
    short: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Facts that are less than both ends of a link can: name of a fact -> (value, what they can); of several the
    worst."""


def accept_data(nonce: str, gpus: int, ids: Collection[str]) -> str:
    """Return user data for a server that is to have `gpus` GPUs of these ``vendor:product`` ids. Raises ValueError for
    an invalid nonce or id."""
    if not NONCE.fullmatch(nonce) or not ids or not all(IDS.fullmatch(pci_id) for pci_id in ids):
        raise ValueError(f"no nonce, or no ids of GPUs: {nonce[:40]!r} {sorted(ids)[:8]}")
    settings = (
        f"NONCE={nonce}\nGPUS={gpus:d}\nIDS='{' '.join(sorted(ids))}'\n"
        f"CHECK_SECONDS={CHECK_SECONDS}\nBURN_SECONDS={BURN_SECONDS}\n"
    )
    return cloud_config(
        {
            "write_files": [
                guest_file(f"{FOLDER}/settings", settings),
                guest_file(f"{FOLDER}/accept", script("gpuyard.health", "guest/accept.sh")),
                guest_file(f"{FOLDER}/gpu-check", script("gpuyard.guest", GPU_CHECK)),
            ],
            "runcmd": [["sh", f"{FOLDER}/accept"]],
        }
    )


def read_console(text: str, nonce: str, gpus: int) -> AcceptanceOutput:
    """Parse any text, in a time that is proportional to its length. An ``ok`` that does not name as many GPUs as the
    server has counts as failed."""
    mark = f"{PREFIX}{nonce} "
    begun, verdict, words, driver = False, GuestVerdict.NONE, "", ""
    facts: dict[str, float] = {}
    short: dict[str, tuple[float, float]] = {}
    for line in plain_lines(text):
        if not line.startswith(mark):
            continue
        word, _, rest = line[len(mark) :].partition(" ")
        begun = True
        if word == "driver" and not driver:
            driver = rest[:60]
        elif (fact := FACT.fullmatch(line[len(mark) :])) and fact[1] in FACTS and verdict is GuestVerdict.NONE:
            name, value = fact[1], float(fact[2])
            if name not in facts or is_worse(name, value, facts[name]):
                facts[name] = value
            if fact[3] and is_worse(name, value, most := float(fact[3])) and value < short.get(name, (most, most))[0]:
                short[name] = (value, most)
        elif word in ("ok", "failed", "unable") and verdict is GuestVerdict.NONE:
            verdict, words = GuestVerdict(word), rest[:MOST_WORDS]
            if verdict is GuestVerdict.OK:
                count, _, words = words.partition(" ")
                if count != str(gpus):
                    verdict, words = (
                        GuestVerdict.FAILED,
                        f"the server says that it has {count[:20]} GPUs, and has {gpus}",
                    )
    return AcceptanceOutput(begun, verdict, words, driver, facts, short)
