"""Reads the operator's Kolla folder: its variables, and the override files that matter to gpuyard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuyard.deployment.kolla.variables import Variable, custom_config, read_variables
from gpuyard.model.errors import UsageError
from gpuyard.runtime.config_files import read_text

OWN_VARIABLES = "globals.d/gpuyard.yml"
OURS = "# Written by 'gpuyard site render --kolla'"
"""Beginning of gpuyard's own file of variables."""
OVERRIDES = (
    "global.conf",
    "nova.conf",
    "placement.conf",
    "nova/*.conf",
    "nova/*/*.conf",
    "placement/*.conf",
    "placement/*/*.conf",
)


@dataclass(frozen=True)
class KollaFolder:
    """The files of a Kolla folder: their texts and places."""

    path: Path
    """The folder of globals.yml."""
    custom: Path
    """node_custom_config: the folder of the overrides."""
    variables: Mapping[str, Variable]
    """The operator's variables, without those of gpuyard's own file, which would hide them."""
    overrides: Mapping[str, str]
    """Path below `custom` -> text."""
    own_variables: str | None
    """Text of globals.d/gpuyard.yml."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of hosts for which there are override files."""
        return tuple(sorted({path.split("/")[1] for path in self.overrides if path.count("/") == 2}))


def read_folder(path: Path) -> KollaFolder:
    """Read a Kolla folder. Raises UsageError when it is none, or a file in it cannot be read."""
    path = path.absolute()
    if read_text(path / "globals.yml") is None:
        raise UsageError(f"{path} has no globals.yml; --kolla wants Kolla's configuration folder, usually /etc/kolla")
    variables = read_variables(variable_files(path))
    custom = Path(custom_config(variables, str(path)))
    return KollaFolder(
        path=path,
        custom=custom if custom.is_absolute() else path / custom,
        variables=variables,
        overrides=dict(_overrides(custom)),
        own_variables=read_text(path / OWN_VARIABLES),
    )


def variable_files(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of each, as kolla-ansible passes them, but for the file that 'site render' wrote. Raises
    UsageError."""
    more = (file for file in sorted((path / "globals.d").glob("*")) if file.suffix in (".yml", ".yaml", ".json"))
    for file in (path / "globals.yml", *more):
        text = read_text(file)
        if text is not None and not (file == path / OWN_VARIABLES and text.startswith(OURS)):
            yield str(file), text


def _overrides(custom: Path) -> Iterator[tuple[str, str]]:
    for file in sorted({file for pattern in OVERRIDES for file in custom.glob(pattern)}):
        text = read_text(file)
        if text is not None:
            yield str(file.relative_to(custom)), text
