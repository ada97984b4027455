"""The linter reads ini files as oslo.config does, and knows the line of everything."""

from __future__ import annotations

import io
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oslo_config import cfg, iniparser

from gpuyard.nova.ini import IniFile, read_ini, references

# Characters with a meaning, and some that other parsers would take for line ends or blanks.
TEXTS = st.lists(
    st.sampled_from(
        [
            *"[]=:#;'\"\\ \t\n\r\f\v\x1c\x85\u2028$a",
            "\n",
            "\n",
            " = ",
            "[DEFAULT]\n",
            "[pci]\n",
            "key = v\n",
            "  more\n",
        ]
    ),
    max_size=40,
).map("".join)
LINES = (
    "[pci]", "[PCI]", "[x", "[]", "a = 1", "a: 2", "b='q'", 'c = "{', "  d}", "\te", "# c", "; c", "", " ", "=x", "z",
)  # fmt: skip
NEAR = st.lists(st.sampled_from(LINES), max_size=15).map("\n".join)


def by_oslo(text: str) -> dict[str, dict[str, list[str]]] | None:
    """Section, key, values as oslo.config's own parser has them; None when it refuses the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.conf")
        path.write_bytes(text.encode())
        sections: dict[str, dict[str, list[str]]] = {}
        try:
            cfg.ConfigParser(str(path), sections).parse()
        except iniparser.ParseError:
            return None
        return sections


def as_sections(ini: IniFile) -> dict[str, dict[str, list[str]]]:
    sections: dict[str, dict[str, list[str]]] = {section: {} for section, _ in ini.sections}
    for setting in ini.settings:
        sections[setting.section].setdefault(setting.key, []).append(setting.value)
    return sections


@given(TEXTS | NEAR)
def test_it_is_oslo_config(text: str) -> None:
    ini, expected = read_ini(text), by_oslo(text)
    assert bool(ini.problems) == (expected is None)
    if expected is not None:
        assert as_sections(ini) == expected


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    ini = read_ini(text)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for setting in ini.settings:
        assert lines[setting.line - 1].strip().startswith(setting.key)
    assert all(1 <= problem.line <= len(lines) for problem in ini.problems)


def test_values_of_several_lines_keep_the_line_of_their_key() -> None:
    text = '# c\n[pci]\ndevice_spec = {"address":\n  "0000:27:00.0"}\ndevice_spec: x\nalias = "{}"\n\n[PCI]\nb =\n'
    ini = read_ini(text)
    assert [(s.line, s.place, s.value) for s in ini.settings] == [
        (3, ("pci", "device_spec"), '{"address":\n"0000:27:00.0"}'),
        (5, ("pci", "device_spec"), "x"),
        (6, ("pci", "alias"), "{}"),
        (9, ("pci", "b"), ""),
    ]
    assert (ini.sections, ini.problems) == ((("pci", 2), ("PCI", 8)), ())


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a = 1", 1, "a stands before any [section]"),
        ("[x]\n a = 1", 2, "continues the value above it, and there is none"),
        ("[x]\na", 2, "'a' has neither = nor :"),
        ("[x]\n= a", 2, "a value without a key"),
        ("[x", 1, "'[x' does not end with ]"),
        ("[]", 1, "the section has no name"),
        ("\ufeff[x]\na = 1", 1, "begins with a byte order mark"),
    ],
)
def test_what_oslo_config_refuses_has_its_line(text: str, line: int, says: str) -> None:
    problem = read_ini(text).problems[0]
    assert problem.line == line
    assert says in problem.message
    assert by_oslo(text) is None


def sample() -> str:
    """All options of Nova, as oslo-config-generator writes them into nova.conf.sample, with those lines in force."""
    from tests.support.services import whitelist

    assert whitelist  # imported so that Nova's own imports have warned already
    from oslo_config import generator

    conf, out = cfg.ConfigOpts(), io.StringIO()
    generator.register_cli_opts(conf)
    conf(["--namespace", "nova.conf"], default_config_files=[])
    generator.generate(conf, out)
    return re.sub(r"^#(\w+ =)", r"\1", out.getvalue(), flags=re.M)


def test_nova_s_own_sample_is_read_alike() -> None:
    text = sample()
    ini = read_ini(text)
    assert not ini.problems
    assert len(ini.settings) > 500
    assert as_sections(ini) == by_oslo(text)


def test_references() -> None:
    assert list(references("$my_ip ${host} ${pci.alias} \\$no $$no 5$")) == [
        ("$my_ip", (None, "my_ip")),
        ("${host}", (None, "host")),
        ("${pci.alias}", ("pci", "alias")),
    ]
