"""What is in the operator's Kolla folder, as far as it matters to gpuyard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuyard.deployment.kolla.variables import Variable, custom_config, read_variables
from gpuyard.model.errors import UsageError
from gpuyard.runtime.config_files import read_text

OWN_VARIABLES = "globals.d/gpuyard.yml"
OURS = "# Written by 'gpuyard site render --kolla'"
"""How gpuyard's own file of variables begins."""
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
    """Texts of the files that are there, and where they are."""

    path: Path
    """globals.yml is here."""
    custom: Path
    """node_custom_config: the overrides are here."""
    variables: Mapping[str, Variable]
    """The operator's: what gpuyard's own file sets would hide what he sets too."""
    overrides: Mapping[str, str]
    """Path below `custom` -> text."""
    own_variables: str | None
    """globals.d/gpuyard.yml."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names for which there are override files."""
        return tuple(sorted({path.split("/")[1] for path in self.overrides if path.count("/") == 2}))


def read_folder(path: Path) -> KollaFolder:
    """Raises UsageError when it is not a Kolla folder, or a file in it cannot be read."""
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
    """Name and text of each, as kolla-ansible passes them, but for what 'site render' wrote. Raises UsageError."""
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
