"""Judges a signal of one GPU, by the table of model/signals.py and the rules of the site file. Pure.

Every other module asks this one. The rule of the GPU goes before that of its pool, that before that of the site, and
that before the table; verdict, threshold and trial each by themselves. So a pool can lower the threshold that the site
gives a signal, and leave its verdict as it is.

    health:                                              verdict      threshold
      signals: {aer-correctable: {threshold: 500}}       suspect      500          everywhere
      pools: {t4: {signals: {aer-correctable: note}}}    note         500          in pool t4
      gpus:
        gpu-1/0000:3b:00.0:
          signals: {aer-correctable: {threshold: 50}}    note         50           this GPU, of pool t4

A signal on trial keeps nothing back: what it would have done is written into the GPU's record and shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from gpuyard.model.signals import SIGNALS, Judgement, Signal, time_words
from gpuyard.site.health_rules import SignalRule, SiteHealth

JUDGEMENTS: Mapping[str, Judgement | None] = {
    "off": None, "note": Judgement.NOTE, "suspect": Judgement.SUSPECT, "bad": Judgement.BAD,
}  # fmt: skip
"""Verdict of a site file -> what it means; None: nothing follows, and nothing is written down."""


@dataclass(frozen=True)
class SignalVerdict:
    """The verdict on a signal of one GPU."""

    signal: Signal
    judgement: Judgement | None
    """None: nothing, it is off. On trial: what would follow."""
    count: int
    lasts: timedelta
    """Its threshold, as in Signal."""
    trial: bool = False
    because: tuple[str, ...] = ()
    """Lines of the site file by which it is not as in the table, as ``health.signals.link-width: note``."""

    @property
    def in_force(self) -> Judgement | None:
        """The judgement that takes effect: on trial no more than a note."""
        return Judgement.NOTE if self.trial and self.judgement is not None else self.judgement

    @property
    def words(self) -> str:
        """The condition under which it is seen, in words."""
        return self.signal.words(self.count, self.lasts)

    @property
    def cause(self) -> str:
        """The condition under which it is seen, and the lines of the site file that overrule it."""
        return f"{self.words} [{'; '.join(self.because)}]" if self.because else self.words

    @property
    def text(self) -> str:
        """The verdict in a line: ``link-width: note, by health.signals.link-width: note``."""
        now = "on trial" if self.trial else self.judgement.value if self.judgement else "off"
        return f"{self.signal.code}: {now}, by {' and '.join(self.because)}"


class SignalVerdicts:
    """The verdicts on all signals, by the rules of one site. `rules` None: of a site without any."""

    def __init__(self, rules: SiteHealth | None = None) -> None:
        self._rules = rules
        self._says_nothing = rules is None or not (
            rules.signals or rules.pools or rules.gpus or rules.trial is not None
        )

    def of(self, code: str, gpu: str, pool: str) -> SignalVerdict:
        """Return the verdict on a signal of a GPU (``host/address``). Raises KeyError for an unknown code."""
        signal = SIGNALS[code]
        if self._says_nothing or signal.is_fixed:
            return SignalVerdict(signal, signal.judgement, signal.count, signal.lasts)
        judgement: Judgement | None = signal.judgement
        count, lasts, because = signal.count, signal.lasts, list[str]()
        rules = list(self._said(code, gpu, pool))
        for path, rule, _ in rules:
            if rule.verdict is not None:
                judgement = JUDGEMENTS[rule.verdict]
                because += [f"{path}.signals.{code}: {rule.verdict}"] if judgement is not signal.judgement else []
                break
        for path, rule, _ in rules:
            if rule.threshold is not None:
                if isinstance(rule.threshold, int):
                    count, words = rule.threshold, str(rule.threshold)
                else:
                    lasts, words = rule.threshold, time_words(rule.threshold)
                because += [f"{path}.signals.{code}: threshold {words}"] if (count, lasts) != _limits(signal) else []
                break
        trial = False
        for path, rule, whole in rules:
            own = rule.trial is not None
            if own or whole is not None:
                trial = bool(rule.trial if own else whole)
                because += [f"{path}.signals.{code}: trial" if own else f"{path}.trial"] if trial else []
                break
        return SignalVerdict(signal, judgement, count, lasts, trial, tuple(because))

    def overruled(self, gpu: str, pool: str) -> list[SignalVerdict]:
        """Return the verdicts on a GPU's signals that are not as in the table."""
        if self._says_nothing:
            return []
        return [verdict for code in SIGNALS if (verdict := self.of(code, gpu, pool)).because]

    def _said(self, code: str, gpu: str, pool: str) -> Iterator[tuple[str, SignalRule, bool | None]]:
        """Where in the site file, what it says of the signal, and whether all there is on trial; the most specific
        first."""
        rules = self._rules
        if rules is None:
            return
        for kind, name, parts in (("gpus", gpu, rules.gpus), ("pools", pool, rules.pools)):
            if (part := parts.get(name)) is not None:
                yield f"health.{kind}.{name}", part.signals.get(code, NOTHING), part.trial
        yield "health", rules.signals.get(code, NOTHING), rules.trial


NOTHING = SignalRule.model_validate({})
BUILT_IN = SignalVerdicts()
"""The verdicts of a site without rules."""


def _limits(signal: Signal) -> tuple[int, timedelta]:
    return signal.count, signal.lasts
