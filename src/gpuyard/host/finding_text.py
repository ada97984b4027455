"""Findings for people and for programs."""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence

from gpuyard.model.finding import Finding


def finding_dict(finding: Finding) -> Dict[str, str]:
    """For JSON."""
    return {**vars(finding), "level": finding.level.value}


def finding_lines(findings: Sequence[Mapping[str, str]]) -> List[str]:
    """One or two lines a finding, as `finding_dict` gives it: what is so, and what to do."""
    found: List[str] = []
    for finding in findings:
        found.append(f"{finding['level']:8} {finding['check']:17} {finding['reason']}")
        found += [f"{'':26} -> {finding['remedy']}"] if finding["remedy"] else []
    return found
