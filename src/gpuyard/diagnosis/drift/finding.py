"""Makes findings of drift: an alarm, a difference (an error), or a note, which needs no action."""

from __future__ import annotations

from gpuyard.diagnosis.drift.fixes import FixStep
from gpuyard.model.finding import Finding, Severity
from gpuyard.site.steps import SiteStep


class Steps(tuple[SiteStep | FixStep, ...]):
    """The steps that mend a difference safely, if any do."""

    def __str__(self) -> str:
        return "; ".join(map(str, self))


def drift(
    severity: Severity,
    code: str,
    object: str,
    observed: str,
    desired: str,
    effect: str,
    remedy: str,
    steps: tuple[SiteStep | FixStep, ...] = (),
) -> Finding:
    """Return one difference between the site and the cloud: what is, what should be, and what it means for users."""
    return Finding(code, severity, object, observed, remedy, {"wanted": desired, "effect": effect, "fix": Steps(steps)})


def by_weight(finding: Finding) -> tuple[int, str, str]:
    """Sort findings by this key: alarms first."""
    return finding.severity.rank, finding.code, finding.object
