"""Splits and joins ini files with two owners: gpuyard's marked block on top, and the operator's part below it,
unchanged.

kolla-ansible templates these files with Jinja2 and then reads them with oslo.config's parser, where a section may
come more than once. The block is on top so that a line that somebody appends to the file still lands in the section
that they see above it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuyard.model.errors import UsageError
from gpuyard.model.text import without_blocks
from gpuyard.nova.ini import TEMPLATE_VALUE, IniSetting, read_template
from gpuyard.site.options import Option, render_ini

BEGIN = "# BEGIN gpuyard"
END = "# END gpuyard"
BEGIN_LINE = f"{BEGIN}: written by 'gpuyard site render'; what is changed in here is lost"

JINJA_OPENING = re.compile(r"\{[{%#]")
JINJA_COMMENT = {"{#": "#}"}
JINJA_LINE = re.compile(r"^\s*\{[{%]")
EATS_WHITESPACE = re.compile(r"\s*\{[{%#]-")


@dataclass(frozen=True)
class Halves:
    """The two parts of a file. `block` is gpuyard's, with its marks; empty when there is none."""

    block: str
    own: str
    """The operator's part, byte for byte."""
    offset: tuple[int, int]
    """The block's lines: how many lines stand above it, and how many it has."""

    def line(self, number: int) -> int:
        """Return the number of a line of `own` in the whole file."""
        above, block = self.offset
        return number if number <= above else number + block


def split(text: str, source: str) -> Halves:
    """Split a file. Raises UsageError when the marks of the block do not pair up."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    begins = [index for index, line in enumerate(lines) if line.startswith(BEGIN)]
    ends = [index for index, line in enumerate(lines) if line.startswith(END)]
    if not begins and not ends:
        return Halves("", text, (0, 0))
    if len(begins) != 1 or len(ends) != 1 or begins[0] > ends[0]:
        where = ", ".join(str(index + 1) for index in sorted([*begins, *ends]))
        raise UsageError(
            f"{source}: lines {where}: gpuyard's block must begin once and end once; "
            f"delete its lines, from '{BEGIN}' to '{END}', and render again"
        )
    first, last = begins[0], ends[0]
    own = "".join([*lines[:first], *lines[last + 1 :]])
    return Halves("".join(lines[first : last + 1]), own, (first, last + 1 - first))


def join(block: str, own: str) -> str:
    """Join the two parts: the block on top."""
    return block + own


def settings(text: str) -> tuple[IniSetting, ...]:
    """Return all assignments of a file that may hold Jinja2: those under a condition count too.

    Names that Jinja2 makes up (``{{ name }} = 1``, includes, loops) cannot be seen.
    """
    return tuple(setting for setting in read_template(text)[0].settings if not setting.key.startswith(TEMPLATE_VALUE))


def _lines(text: str) -> list[str]:
    """As Ansible reads them; Jinja2's comments become empty lines, so that line numbers stay."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return without_blocks(text, JINJA_COMMENT).split("\n")


def trouble_below_a_block(own: str) -> tuple[int, str] | None:
    """Return a line of an operator's part that would mean something else below a block, and why; None when none
    would."""
    if own.startswith("#jinja2:"):
        return 1, "'#jinja2:' works on the first line only, which is gpuyard's; leave it out"
    if EATS_WHITESPACE.match(own):
        return 1, "this Jinja2 tag eats the end of the line above it; put a comment line above it"
    for number, line in enumerate(_lines(own), start=1):
        if not line.strip() or line.startswith(("#", ";")) or JINJA_LINE.match(line):
            continue
        return None if line.startswith("[") else (number, "it stands in no section; put one above it")
    return None


def literal(text: str) -> str:
    """Return text that Jinja2 renders as it stands. Not ``{% raw %}``: Ansible drops the end of the line behind a
    tag."""
    return JINJA_OPENING.sub(lambda match: f"{{{{ '{match[0]}' }}}}", text)


def block(options: Iterable[Option], templates: Iterable[Option] = ()) -> str:
    """Return the block for these options, as Jinja2; values of `templates` are Jinja2 already. Empty without
    options."""
    plain, dynamic = tuple(options), tuple(templates)
    if not plain and not dynamic:
        return ""
    parts = (part.rstrip() for part in (literal(render_ini(plain)), render_ini(dynamic)) if part)
    return "\n".join([BEGIN_LINE, "\n\n".join(parts), END, ""])
