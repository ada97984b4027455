"""Derives signals from the report of a guest's agent, the report before, and the GPUs that its server has. Pure.

A report is either of the same boot and newer, or of a boot that was not seen before; anything else is a replay. Xids
and new ECC errors are observed once. A lasting condition (an alarm) is observed when it begins, and again by `standing`
until a report says that it is over. A guest is believed about its own GPUs only: what it says is observed of GPUs that
its server has, whatever cards it names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gpuyard.health.baseline import ROWS_FAILED as ROWS_ACCEPTED
from gpuyard.health.cards import Place
from gpuyard.health.records import Observation
from gpuyard.health.samples import ROWS_FAILED, AgentReport, Sample, SampleRow
from gpuyard.health.xid import DRIVER_REBOOT, RECOVERY_NAMES, recovery_signal, signal_of, words_of
from gpuyard.model.signals import SIGNALS

EARLIER_BOOTS = 8
HARDWARE_SLOW = 0x8 | 0x40 | 0x80
"""NVML's reasons that the hardware has: slowdown, heat, power brake."""
UNSURE = {"xid-restart": "xid-reset", "xid-replace": "xid-reset", DRIVER_REBOOT: "driver-reset"}
"""The signal that is observed of each of several GPUs where it is not known which of them it is: not all of a server's
GPUs are quarantined for what one of them did."""


ALARM_LEFT = "alarm-left"
"""The signal that an alarm goes with the GPU, and not with the server that has lost it."""


class ReplayError(ValueError):
    """The report, or a later one, was here already."""


@dataclass(frozen=True)
class AgentState:
    """The state that is kept of a server's agent between two reports."""

    boot: str = ""
    number: int = -1
    """Of its last sample."""
    xid: int = -1
    """Number of the last Xid in the guest's log."""
    ecc: tuple[tuple[str, int], ...] = ()
    """Card, and its errors."""
    alarms: frozenset[tuple[str, str]] = frozenset()
    """(code, ``host/address``) of what went on in the last report."""
    earlier: tuple[str, ...] = ()
    """Boots before this one, the last first."""


@dataclass(frozen=True)
class Followed:
    """The new state of an agent, and the observations of its report."""

    state: AgentState
    observations: list[Observation]
    fresh: tuple[Sample, ...]
    """Its samples that were not here before: a report comes again when its answer got lost."""


def follow(
    state: AgentState,
    report: AgentReport,
    server: str,
    has: Collection[Place],
    cards: Mapping[str, Place],
    now: datetime,
    is_accepted: Callable[[Place, str], bool] = lambda place, fact: False,
) -> Followed:
    """Return the new state and the observations of a report. `has`: the GPUs of the server; `cards`: known places of
    cards. `is_accepted`: whether the GPU in a place was accepted with a fact of baseline.FACTS. Raises ReplayError."""
    state, fresh = _next(state, report)
    reading = _Report(report, server, frozenset(has), cards, now, is_accepted)
    observations = [*reading.xids(state.xid), *reading.errors(dict(state.ecc))]
    alarms = {}
    for observation in reading.lasting():
        alarms[observation.code, observation.gpu] = observation
    observations += [alarm for key, alarm in alarms.items() if key not in state.alarms]
    last = report.samples[-1].rows
    ecc = {
        card: row.ecc for card, row in zip(report.cards, last, strict=True) if row is not None and row.ecc is not None
    }
    ecc = {**{card: count for card, count in state.ecc if card in report.cards}, **ecc}
    state = replace(
        state,
        number=report.samples[-1].number,
        xid=max(state.xid, *(xid.number for xid in report.xids)) if report.xids else state.xid,
        ecc=tuple(sorted(ecc.items())),
        alarms=frozenset(alarms) | (state.alarms if report.stuck else frozenset()),
    )
    return Followed(state, observations, fresh)


def standing(
    state: AgentState, server: str, has: Collection[Place], now: datetime, is_note: Callable[[Place, str], bool]
) -> list[Observation]:
    """Observe again what was wrong in a server's last report, of the GPUs that it still has. `follow` observes an alarm
    when it begins; until a report says that it is over it stands, also while the agent says nothing. Notes are not
    repeated. `is_note`: whether a signal of the GPU in a place is no more."""
    names = {f"{host}/{address}": (host, address) for host, address in has}
    return [
        Observation(*names[gpu], code, now, "it was so in the last report of its agent", server)
        for code, gpu in sorted(state.alarms)
        if gpu in names and code in SIGNALS and not is_note(names[gpu], code)
    ]


def left_behind(state: AgentState, has: Collection[Place], is_note: Callable[[Place, str], bool]) -> dict[Place, str]:
    """Return the alarms of a server's last report that are of GPUs which it has no more: GPU -> signals that are more
    than notes."""
    names = {f"{host}/{address}" for host, address in has}
    codes_by_place: dict[Place, list[str]] = {}
    for code, gpu in sorted(state.alarms):
        host, _, address = gpu.rpartition("/")
        if gpu not in names and code in SIGNALS and not is_note((host, address), code):
            codes_by_place.setdefault((host, address), []).append(code)
    return {place: ", ".join(codes) for place, codes in codes_by_place.items()}


def without_alarms(state: AgentState, places: Collection[Place]) -> AgentState:
    """Return the state without the alarms of these GPUs."""
    names = {f"{host}/{address}" for host, address in places}
    return replace(state, alarms=frozenset(alarm for alarm in state.alarms if alarm[1] not in names))


def _next(state: AgentState, report: AgentReport) -> tuple[AgentState, tuple[Sample, ...]]:
    """The state to go on from, anew with another boot, and what is new of the report. Raises ReplayError."""
    if report.boot == state.boot:
        fresh = tuple(sample for sample in report.samples if sample.number > state.number)
        if not fresh:
            raise ReplayError("this report, or a later one, was here already")
        return state, fresh
    if report.boot in state.earlier:
        raise ReplayError("this is of an earlier boot of the server")
    earlier = ((state.boot, *state.earlier) if state.boot else ())[:EARLIER_BOOTS]
    return AgentState(boot=report.boot, earlier=earlier), report.samples


@dataclass(frozen=True)
class _Report:
    report: AgentReport
    server: str
    has: frozenset[Place]
    cards: Mapping[str, Place]
    now: datetime
    is_accepted: Callable[[Place, str], bool]

    def xids(self, last_number: int) -> Iterator[Observation]:
        for xid in self.report.xids:
            code = signal_of(xid.code, xid.detail) if xid.number > last_number else ""
            if not code:
                continue
            places = self._where(xid.card)
            words = words_of(xid.code, xid.detail)
            if len(places) > 1:
                code = UNSURE.get(code, code)
                words += f", on one of the {len(places)} GPUs of this server; which one is not known yet"
            yield from self._of(places, code, words)

    def errors(self, before: Mapping[str, int]) -> Iterator[Observation]:
        """The driver counts from zero when it is loaded, so a lower count than before is of new errors."""
        for card, row in self._last():
            if row is not None and row.ecc and row.ecc != before.get(card, 0):
                words = f"{row.ecc} uncorrectable ECC errors since the driver was loaded"
                yield from self._of(self._where(card), "ecc", words)

    def lasting(self) -> Iterator[Observation]:
        """What goes on until it is well again."""
        for card, row in self._last():
            if row is not None and row.rows == ROWS_FAILED:
                wrong = [place for place in self._where(card) if not self.is_accepted(place, ROWS_ACCEPTED)]
                yield from self._of(wrong, "rows", "a row remapping failed")
            if row is not None and row.slow is not None and row.slow & HARDWARE_SLOW:
                yield from self._of(self._where(card), "throttled", _slow(row))
            if row is not None and (code := recovery_signal(row.recovery)):
                places = self._where(card)
                words = f"the driver asks for: {RECOVERY_NAMES.get(row.recovery or 0, 'something new')}"
                yield from self._of(places, code if len(places) == 1 else UNSURE.get(code, code), words)
        if self.report.stuck:  # nothing is known of the cards, neither good nor bad
            yield from self._of(self.has, "driver-stuck", "the driver did not answer the agent")
        else:
            yield from self._lost()

    def _lost(self) -> Iterator[Observation]:
        """With a driver the cards that answer count, without the GPUs on the guest's bus: having no driver is not a
        fault. Which GPU it is follows from where those are that do answer."""
        answering = [card for card, row in self._last() if row is not None]
        present = min(len(answering), self.report.seen) if self.report.cards else self.report.seen
        if present >= len(self.has):
            return
        fine = {self.cards[card] for card in answering if card in self.cards}
        words = f"{present} of the {len(self.has)} GPUs of this server are there"
        yield from self._of(self.has - fine, "guest-lost", words)

    def _last(self) -> list[tuple[str, SampleRow | None]]:
        return list(zip(self.report.cards, self.report.samples[-1].rows, strict=True))

    def _where(self, card: str) -> frozenset[Place]:
        """Of a card, among the GPUs of the server: all that it may be."""
        place = self.cards.get(card)
        if place is not None and place in self.has:
            return frozenset({place})
        others = {self.cards[other] for other in self.report.cards if other in self.cards and other != card}
        return (self.has - others) or self.has

    def _of(self, places: Collection[Place], code: str, words: str) -> Iterator[Observation]:
        for host, address in sorted(places):
            yield Observation(host, address, code, self.now, words, self.server)


def _slow(row: SampleRow) -> str:
    why = [words for bit, words in _WHY.items() if row.slow and row.slow & bit]
    hot = "" if row.temperature is None else f", at {row.temperature} degrees C"
    return f"slowed down by {' and '.join(why)}{hot}"


_WHY = {0x8: "the hardware", 0x40: "its heat", 0x80: "the power brake"}
