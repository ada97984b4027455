"""Reads the reports of hosts, and compares each with the one before to derive signals of the host's GPUs. Pure.

A report is validated first (`look_of`), then refused when it is not newer than the last one of the same boot, or is of
an earlier boot, then judged (`judge`): presence, driver, link, PCIe errors, kernel log, versions of software. Each
observation names a signal of model/signals.py. Nothing is concluded from what a report leaves out, except that a GPU
which the report does not list is missing. Lasting signals are repeated once a minute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from gpuyard.health.baseline import LINK_SPEED, LINK_WIDTH, Facts
from gpuyard.health.records import UUIDS, GpuHealth, Observation
from gpuyard.health.verdicts import BUILT_IN, SignalVerdicts
from gpuyard.host.preparation.passthrough import is_vfio
from gpuyard.model.errors import GpuyardError
from gpuyard.model.host_report import GpuReport, HostReport, LinkReport, LogLine
from gpuyard.model.pci import ADDRESS
from gpuyard.model.signals import SIGNALS
from gpuyard.model.text import printable

MOST_BYTES = 256 * 1024
MOST_FUNCTIONS, MOST_LINES = 512, 100
BIGGEST = 2**53
EVIDENCE = 500
AGAIN = timedelta(minutes=1)
"""The time after which a lasting signal is repeated: whoever has forgotten it meanwhile hears of it anew."""
HOUR = timedelta(hours=1)
WARM = SIGNALS["link-speed"].lasts
"""A link is at its full speed when a server starts, before the guest's driver lets it sleep; it is given so long to be
seen so."""
SILENCE = "ffffffff"
AWAKE = ("D0", "")
"""Older kernels do not tell."""
REACHED = ("D0", "D1", "D2", "D3hot", "")
"""Power states in which a device answers."""
ERRORS = (
    "PCIe Bus Error",
    "Uncorrect",
    "recovery failed",
    "containment event",
    "giving up",
    "device inaccessible",
    "config space inaccessible",
    "change power state",
    "Link Down",
    "Card not present",
    "retraining failed",
)
"""Words in the kernel's lines about an error of PCIe: drivers/pci and vfio-pci of Linux 5.10 to 6.18."""
CORRECTED = ("Corrected", "Correctable", "error status/mask")
"""Words in such lines that are of no weight by themselves: corrected errors are counted."""
FAULTS = ("Request device [", "Event logged [")
"""Of Intel's and AMD's IOMMU."""


class LookRefusedError(GpuyardError):
    """The body is no valid report, or not one of this host."""


class StaleLookError(LookRefusedError):
    """The report is older than one that was taken already."""


def _address(text: str) -> str:
    if not ADDRESS.fullmatch(text) or text.endswith("\n"):
        raise ValueError("write a PCI address, as in 0000:3b:00.0")
    return text


Address = Annotated[str, AfterValidator(_address)]
SiteCondition = Annotated[str, StringConstraints(max_length=64), AfterValidator(lambda text: printable(text)[:64])]
Line = Annotated[str, StringConstraints(max_length=300), AfterValidator(lambda text: printable(text)[:300])]
Count = Annotated[int, Field(ge=0, le=BIGGEST)]
Figure = Annotated[float, Field(ge=0, le=BIGGEST, allow_inf_nan=False)]
Serial = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{16})?\z")]


class _Told(BaseModel):
    """Keys that are not known are left out: a newer host may say more."""

    model_config = ConfigDict(extra="ignore", strict=True)


class _SentLink(_Told):
    speed: Figure = 0.0
    width: Count = 0
    max_speed: Figure = 0.0
    max_width: Count = 0


class _SentGpu(_Told):
    address: Address
    present: bool = True
    ids: SiteCondition = ""
    config: Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{8})?\z")] = ""
    driver: SiteCondition = ""
    group: Annotated[int, Field(ge=-1, le=BIGGEST)] | None = None
    link: _SentLink = Field(default_factory=_SentLink)
    power: SiteCondition = ""
    aer: Annotated[dict[SiteCondition, Count], Field(max_length=8)] = Field(default_factory=dict)
    reset_methods: Annotated[list[SiteCondition], Field(max_length=16)] = Field(default_factory=list)
    in_use: bool | None = None
    serial: Serial = ""

    def look(self) -> GpuReport:
        fields = {**dict(self), "link": LinkReport(**dict(self.link)), "reset_methods": tuple(self.reset_methods)}
        return GpuReport(**fields)


class _SentLine(_Told):
    time: Figure
    address: Address
    text: Line


class _SentLook(_Told):
    host: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    boot: Annotated[str, StringConstraints(min_length=1, max_length=64), AfterValidator(printable)]
    number: Count
    time: SiteCondition = ""
    kernel: Line = ""
    firmware: Line = ""
    qemu: SiteCondition = ""
    gpus: Annotated[list[_SentGpu], Field(max_length=MOST_FUNCTIONS)]
    log: Annotated[list[_SentLine], Field(max_length=MOST_LINES)] = Field(default_factory=list)


def look_of(body: bytes) -> HostReport:
    """Parse a report that a host has sent. Raises LookRefusedError."""
    if len(body) > MOST_BYTES:
        raise LookRefusedError(f"a look has {MOST_BYTES} bytes at most")
    try:
        sent = _SentLook.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = printable(".".join(map(str, first["loc"])))[:100]
        raise LookRefusedError(f"{where or 'the body'}: {first['msg'][:200]}") from None
    gpus = tuple(gpu.look() for gpu in sent.gpus)
    if len({gpu.address for gpu in gpus}) < len(gpus):
        raise LookRefusedError("gpus: an address is there twice")
    log = tuple(LogLine(line.time, line.address, line.text) for line in sent.log)
    return HostReport(**{**dict(sent), "gpus": gpus, "log": log})


@dataclass(frozen=True)
class LinkUse:
    """The use of a GPU by a server: since when, and the fastest link speed that was seen in it."""

    began: datetime
    fastest: float = 0.0


@dataclass(frozen=True)
class HostMemory:
    """The state that is kept of a host between its reports. Only `look` must outlive a restart."""

    look: HostReport
    """The last one; of its log only the newest line that was ever heard in this boot."""
    hours: Mapping[str, tuple[datetime, int]] = field(default_factory=dict)
    """Address -> since when correctable errors are counted, and how many there were then."""
    uses: Mapping[str, LinkUse] = field(default_factory=dict)
    """Of GPUs whose use was seen to begin."""
    told: Mapping[tuple[str, str], datetime] = field(default_factory=dict)
    """Address and signal -> when it was told last."""
    boots: tuple[str, ...] = ()
    """Ids of earlier boots, at most 20."""


def judge(
    memory: HostMemory | None,
    look: HostReport,
    gpus: Mapping[str, GpuHealth],
    now: datetime,
    verdicts: SignalVerdicts = BUILT_IN,
) -> tuple[list[Observation], HostMemory]:
    """Return the observations of a report, of the GPUs that the site has on this host, and the new memory.

    `gpus`: by address. `verdicts`: thresholds; a signal that is off is left out. Raises StaleLookError for a report
    that is not newer than what is remembered.
    """
    if memory is not None:
        refuse_stale(memory, look)
    comparison = _Comparison(memory, look, now, verdicts)
    observations: list[Observation] = []
    last_reported = dict(memory.told) if memory else {}
    for address, gpu in gpus.items():
        for code, evidence in comparison.of(gpu):
            if verdicts.of(code, gpu.name, gpu.pool).judgement is None:
                continue
            if now - last_reported.get((address, code), now - AGAIN) >= AGAIN:
                last_reported[address, code] = now
                observations.append(Observation(look.host, address, code, now, printable(evidence)[:EVIDENCE]))
    return observations, HostMemory(
        replace(look, log=comparison.newest()),
        comparison.hours,
        comparison.uses,
        {key: at for key, at in last_reported.items() if now - at < AGAIN},
        comparison.boots(),
    )


def facts_of(gpu: GpuReport, use: LinkUse | None, now: datetime) -> dict[str, float]:
    """Return the facts that a report shows for certain. `use`: the GPU's use, as it is remembered. A link that is
    slower than it can be counts only after WARM: GPUs slow it down when they have nothing to do."""
    link, facts = gpu.link, dict[str, float]()
    if gpu.present and gpu.power in AWAKE and link.width:
        facts[LINK_WIDTH] = link.width
    if use is not None and use.fastest and (use.fastest >= link.max_speed or now - use.began >= WARM):
        facts[LINK_SPEED] = use.fastest
    return facts


def refuse_stale(memory: HostMemory, look: HostReport) -> None:
    """Raise StaleLookError for a report that is not newer than the last, or of an earlier boot."""
    last = memory.look
    if look.boot in memory.boots or (look.boot == last.boot and look.number <= last.number):
        raise StaleLookError(f"look {look.number} is not newer than look {last.number}, which was heard before")


class _Comparison:
    """Of one look with what is remembered."""

    def __init__(self, memory: HostMemory | None, look: HostReport, now: datetime, verdicts: SignalVerdicts) -> None:
        self._memory, self._look, self._now, self._verdicts = memory, look, now, verdicts
        self._same_boot = memory is not None and memory.look.boot == look.boot
        self._is = {gpu.address: gpu for gpu in look.gpus}
        self._was = {gpu.address: gpu for gpu in memory.look.gpus} if memory else {}
        self.hours: dict[str, tuple[datetime, int]] = {}
        self.uses: dict[str, LinkUse] = {}

    def of(self, gpu: GpuHealth) -> Iterator[tuple[str, str]]:
        """Signals of one GPU, each with its evidence."""
        report, was = self._is.get(gpu.address), self._was.get(gpu.address)
        if report is None or not report.present:
            yield "missing", "it is not in sysfs"
        elif report.config == SILENCE:
            yield "no-answer", "its config space reads ffffffff"
        else:
            yield from self._binding(report)
            yield from self._link(report, was, gpu)
            yield from self._aer(report, was, gpu)
            if was is not None and was.present:
                yield from _changes(report, was)
            if was is not None and _stuck(was) and _stuck(report):  # between two looks a server may begin or end
                yield "power-stuck", f"a server has it, and its power state is {report.power}"
        yield from self._log(gpu.address)
        yield from self._software(gpu)

    def _binding(self, report: GpuReport) -> Iterator[tuple[str, str]]:
        if not is_vfio(report.driver or None):
            yield "driver", f"it is with {report.driver or 'no driver'}"
        card = report.address.rpartition(".")[0]
        for other in self._look.gpus:
            companion = other.address != report.address and other.address.rpartition(".")[0] == card
            if companion and other.driver and not is_vfio(other.driver):
                yield "driver", f"{other.address} of the same card is with {other.driver}"

    def _link(self, report: GpuReport, was: GpuReport | None, gpu: GpuHealth) -> Iterator[tuple[str, str]]:
        link, accepted = report.link, _accepted(gpu, report)
        most_width = min(link.max_width, accepted.get(LINK_WIDTH, link.max_width))
        if report.power in AWAKE and 0 < link.width < most_width:
            with_ = "" if most_width == link.max_width else f", and it was accepted with {most_width:g}"
            yield "link-width", f"{link.width} lanes of {link.max_width}{with_}"
        use = self._use(report, was)
        if use is None:
            return
        fastest = max(use.fastest, link.speed if report.power in AWAKE else 0.0)
        self.uses[report.address] = replace(use, fastest=fastest)
        most_speed = min(link.max_speed, accepted.get(LINK_SPEED, link.max_speed))
        warm = self._verdicts.of("link-speed", gpu.name, gpu.pool).lasts
        if self._now - use.began >= warm and 0 < fastest < most_speed:
            minutes = int((self._now - use.began).total_seconds() // 60)
            with_ = "" if most_speed == link.max_speed else f"; it was accepted with {most_speed:g}"
            yield "link-speed", f"{fastest:g} GT/s of {link.max_speed:g} at most, in {minutes} minutes of use{with_}"

    def _use(self, report: GpuReport, was: GpuReport | None) -> LinkUse | None:
        """The use that it is in, if that was seen to begin."""
        if not report.in_use:
            return None
        if self._same_boot and was is not None and was.in_use is False:
            return LinkUse(self._now)
        return self._memory.uses.get(report.address) if self._memory and self._same_boot else None

    def _aer(self, report: GpuReport, was: GpuReport | None, gpu: GpuHealth) -> Iterator[tuple[str, str]]:
        if not self._same_boot or was is None:
            was = None
        worse = [
            f"{report.aer[kind] - was.aer[kind]} {kind}"
            for kind in ("fatal", "nonfatal")
            if was is not None and kind in report.aer and kind in was.aer and report.aer[kind] > was.aer[kind]
        ]
        if worse:
            yield "aer-fatal", f"{' and '.join(worse)} AER errors more than in the look before"
        count = report.aer.get("correctable")
        if count is None:
            return
        before = was.aer.get("correctable", count) if was is not None else count
        since, base = self._hour(report.address) or (self._now, before)
        if base > count or self._now - since >= HOUR:
            since, base = self._now, min(before, count)
        if count - base >= self._verdicts.of("aer-correctable", gpu.name, gpu.pool).count:
            yield "aer-correctable", f"{count - base} correctable AER errors within an hour"
            since, base = self._now, count
        self.hours[report.address] = since, base

    def _hour(self, address: str) -> tuple[datetime, int] | None:
        return self._memory.hours.get(address) if self._memory and self._same_boot else None

    def _log(self, address: str) -> Iterator[tuple[str, str]]:
        lines = [line.text for line in self._new_lines() if line.address == address]
        faults = [text for text in lines if any(mark in text for mark in FAULTS)]
        errors = [
            text
            for text in lines
            if text not in faults and any(mark in text for mark in ERRORS) and not any(c in text for c in CORRECTED)
        ]
        for code, matches in (("iommu-fault", faults), ("kernel-log", errors)):
            if matches:
                more = f" (and {len(matches) - 1} lines like it)" if len(matches) > 1 else ""
                yield code, matches[-1] + more

    def _new_lines(self) -> Sequence[LogLine]:
        """Those that were not heard before: a watch that is started anew reads the log from its beginning. Of a host
        that is heard for the first time nothing is news."""
        if self._memory is None:
            return ()
        if not self._same_boot:
            return self._look.log
        until = max((line.time for line in self._memory.look.log), default=-1.0)
        return [line for line in self._look.log if line.time > until]

    def newest(self) -> tuple[LogLine, ...]:
        """The line up to which the log was heard."""
        lines = [*self._look.log, *(self._memory.look.log if self._memory and self._same_boot else ())]
        return (max(lines, key=lambda line: line.time),) if lines else ()

    def boots(self) -> tuple[str, ...]:
        if self._memory is None or self._same_boot:
            return self._memory.boots if self._memory else ()
        return (*self._memory.boots, self._memory.look.boot)[-20:]

    def _software(self, gpu: GpuHealth) -> Iterator[tuple[str, str]]:
        if gpu.accepted is None:
            return
        for name in ("kernel", "firmware", "qemu"):
            now, then = getattr(self._look, name), getattr(gpu.software, name)
            if now and then and now != then:
                yield name, f"{now}, and it was accepted with {then}"


def _accepted(gpu: GpuHealth, report: GpuReport) -> Facts:
    """What this very card was accepted with."""
    baseline = gpu.baseline
    if baseline is None:
        return {}
    named = report.serial and baseline.card and not baseline.card.startswith(UUIDS)
    return {} if named and baseline.card != report.serial else baseline.facts


def _stuck(report: GpuReport) -> bool:
    return report.in_use is True and report.power not in REACHED


def _changes(report: GpuReport, was: GpuReport) -> Iterator[tuple[str, str]]:
    """`was`: as it was seen last, in this boot or the one before."""
    if was.ids and report.ids != was.ids:
        yield "changed", f"ids {report.ids}, and {was.ids} before"
    elif report.serial and was.serial and report.serial != was.serial:
        yield "changed", f"serial number {report.serial}, and {was.serial} before"
    elif was.reset_methods and not report.reset_methods:
        yield "no-reset", f"none of {', '.join(was.reset_methods)} is there any more"
