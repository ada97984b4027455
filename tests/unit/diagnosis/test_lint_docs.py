"""The manual has every rule, and a section for every old name that the linter knows."""

from __future__ import annotations

import re
from pathlib import Path

from gpuyard.diagnosis.lint.rules import RULES
from gpuyard.nova.filters import REMOVED
from gpuyard.nova.options import RENAMED
from gpuyard.nova.release import RELEASES

SECTION = r"^## `([^`\n]+)`$(.*?)(?=^## |\Z)"
HOW_TO = Path(__file__).parents[3] / "docs/how-to"


def test_every_rule_is_in_the_table_as_it_is() -> None:
    text = (HOW_TO / "lint-nova-conf.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", text, re.M))
    assert rows == {rule.id: f"{rule.severity} | {rule.sentence}" for rule in RULES.values()}


def test_every_old_name_has_its_section() -> None:
    text = (HOW_TO / "renamed-options.md").read_text()
    flat = {name: " ".join(body.split()) for name, body in re.findall(SECTION, text, re.M | re.S)}
    headers = "\n".join(re.findall(r"^## .*$", text, re.M))
    for renamed in RENAMED.values():
        body = flat["[{}]{}".format(*renamed.old)]
        read = {renamed.read_by(release) for release in RELEASES.values()}
        assert "[{}]{}".format(*renamed.new) in body
        assert ("is still read" in body) is (True in read)
        assert ("is ignored" in body) is (False in read)
        assert not renamed.until or f"Nova {renamed.until - 1} was the last to read" in body
    others = ("vcpu_pin_set", "hide_hypervisor_id", "nova flavor-key", "openstack quota set --class", "pci-stub")
    for name in (*REMOVED, *others):
        assert f"`{name}`" in headers or f"`{name}`" in text, name
    for name, (since, _) in REMOVED.items():
        paragraph = next(part for part in re.split(r"^## ", text, flags=re.M) if f"`{name}`" in part)
        assert f"Nova {since} " in paragraph, name
