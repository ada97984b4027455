"""Recorded parts of Ubuntu's and Debian's package indexes, and real apt that reads them.

Sources, read in November 2026:

- Ubuntu's packages of NVIDIA's driver: Canonical's own packaging, github.com/canonical/nvidia-graphics-drivers, file
  debian/control at the newest commit of the branches 470-server-noble (0b712893), 570-server-noble (d27e751b:
  "Transition EOL 570 drivers to 580", LP: #2147038), 580-server-noble (24d7353e) and 550-server-noble (4738992d);
  versions by debian/changelog there.
- Their component, restricted: what apt showed of nvidia-dkms-530 in jammy (Ubuntu Forums, 11 July 2023: "Section:
  restricted/libs", "APT-Sources: ... jammy-security/restricted"), of libnvidia-compute-515-server
  (github.com/NVIDIA/ansible-role-nvidia-driver/issues/72: "jammy-updates/restricted"), and Ubuntu's 24.04.4 medium,
  which has pool/restricted/n/nvidia-graphics-drivers-580. That of docker.io, universe: apt's lines
  "jammy-updates/universe amd64 docker.io amd64 24.0.7-0ubuntu2~22.04.1" and "noble-updates/universe amd64 docker.io
  amd64 28.2.2-0ubuntu1~24.04.1" in logs of public repositories.
- Releases and their ends: /usr/share/distro-info/debian.csv and ubuntu.csv of Debian's package distro-info-data
  0.58+deb12u7, the lines of releases from 2020 on and one from before.
- Debian bullseye: the Packages files of its mirrors, where nvidia-tesla-460-kernel-dkms stands for 470, and its Release
  files: non-free-firmware begins with bookworm.
"""

from __future__ import annotations

import os
from pathlib import Path

UBUNTU_COMPONENT = {
    "nvidia-dkms-580-server": "restricted",
    "nvidia-dkms-580-server-open": "restricted",
    "nvidia-utils-580-server": "restricted",
    "libnvidia-compute-580-server": "restricted",
    "docker.io": "universe",
}
"""Package of noble and jammy -> the component that it is in."""
DEBIAN_COMPONENTS = {
    "bullseye": {"main", "contrib", "non-free"},
    "bookworm": {"main", "contrib", "non-free-firmware", "non-free"},
    "trixie": {"main", "contrib", "non-free-firmware", "non-free"},
}
"""Release -> the line Components of dists/RELEASE/Release."""
RELEASES = {
    "debian": """\
version,codename,series,created,release,eol,eol-lts,eol-elts
10,Buster,buster,2017-06-17,2019-07-06,2022-09-10,2024-06-30,2029-06-30
11,Bullseye,bullseye,2019-07-06,2021-08-14,2024-08-14,2026-08-31,2031-06-30
12,Bookworm,bookworm,2021-08-14,2023-06-10,2026-07-11,2028-06-30,2033-06-30
13,Trixie,trixie,2023-06-10,2025-08-09,2028-08-09,2030-06-30,2035-06-30
14,Forky,forky,2025-08-09
15,Duke,duke,2027-08-01
""",
    "ubuntu": """\
version,codename,series,created,release,eol,eol-server,eol-esm,eol-legacy
19.10,Eoan Ermine,eoan,2019-04-18,2019-10-17,2020-07-17
20.04 LTS,Focal Fossa,focal,2019-10-17,2020-04-23,2025-05-29,2025-05-29,2030-04-23,2032-04-27
20.10,Groovy Gorilla,groovy,2020-04-23,2020-10-22,2021-07-22
21.04,Hirsute Hippo,hirsute,2020-10-22,2021-04-22,2022-01-20
21.10,Impish Indri,impish,2021-04-22,2021-10-14,2022-07-14
22.04 LTS,Jammy Jellyfish,jammy,2021-10-14,2022-04-21,2027-06-01,2027-06-01,2032-04-21,2034-04-25
22.10,Kinetic Kudu,kinetic,2022-04-21,2022-10-20,2023-07-20
23.04,Lunar Lobster,lunar,2022-10-20,2023-04-20,2024-01-25
23.10,Mantic Minotaur,mantic,2023-04-20,2023-10-12,2024-07-11
24.04 LTS,Noble Numbat,noble,2023-10-12,2024-04-25,2029-05-31,2029-05-31,2034-04-25,2036-04-29
24.10,Oracular Oriole,oracular,2024-04-25,2024-10-10,2025-07-10
25.04,Plucky Puffin,plucky,2024-10-10,2025-04-17,2026-01-15
25.10,Questing Quokka,questing,2025-04-17,2025-10-09,2026-07-09
26.04 LTS,Resolute Raccoon,resolute,2025-10-09,2026-04-23,2031-05-29,2031-05-29,2036-04-23,2038-04-27
26.10,Stonking Stingray,stonking,2026-04-24,2026-10-15,2027-07-15
""",
}
"""Distribution -> what distro-info-data says of its releases."""
_OLD_570, _NEW_580 = "570.211.01-0ubuntu1.24.04.1", "580.126.20-0ubuntu0.24.04.2"
_NOBLE = [
    # package, version, what it depends on
    ("nvidia-dkms-470-server", "470.256.02-0ubuntu0.24.04.1", "dkms, nvidia-kernel-source-470-server"),
    ("nvidia-dkms-550-server", "550.163.01-0ubuntu0.24.04.2", "nvidia-dkms-570-server"),
    ("nvidia-dkms-550-server-open", "550.163.01-0ubuntu0.24.04.2", "nvidia-dkms-570-server-open"),
    ("nvidia-dkms-570-server", _OLD_570, "nvidia-dkms-580-server"),
    ("nvidia-dkms-570-server-open", _OLD_570, "nvidia-dkms-580-server-open"),
    ("nvidia-utils-570-server", _OLD_570, "nvidia-utils-580-server"),
    ("libnvidia-compute-570-server", _OLD_570, "libnvidia-compute-580-server"),
    (
        "nvidia-dkms-580-server",
        _NEW_580,
        "dkms, nvidia-kernel-source-580-server (>= 580.126.20), nvidia-firmware-580-server-580.126.20",
    ),
    ("nvidia-dkms-580-server-open", _NEW_580, "dkms, nvidia-kernel-source-580-server-open (>= 580.126.20)"),
    ("nvidia-utils-580-server", _NEW_580, "nvidia-kernel-common-580-server-580.126.20"),
    ("libnvidia-compute-580-server", _NEW_580, "nvidia-kernel-common-580-server-580.126.20"),
]
_BULLSEYE = [
    ("nvidia-kernel-dkms", "470.256.02-2", "nvidia-kernel-support, dkms"),
    ("nvidia-tesla-460-kernel-dkms", "460.106.00-17~deb11u1", "nvidia-tesla-470-kernel-dkms, dkms"),
    ("nvidia-tesla-470-kernel-dkms", "470.256.02-1~deb11u2", "nvidia-tesla-470-kernel-support, dkms"),
]
_INDEXES = {"noble": _NOBLE, "bullseye": _BULLSEYE}


def apt_with(release: str, folder: Path) -> dict[str, str]:
    """Make an archive of a recorded index in `folder`, and return the environment in which apt reads that alone."""
    archive = folder / "archive"
    archive.mkdir()
    (archive / "Packages").write_text(
        "\n".join(
            f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: nobody\nDepends: {depends}\n"
            f"Filename: ./{name}.deb\nSize: 1\nSHA256: {'0' * 64}\nDescription: {name}\n"
            for name, version, depends in _INDEXES[release]
        )
    )
    for path in ("lists/partial", "cache/archives/partial"):
        (folder / path).mkdir(parents=True)
    (folder / "sources.list").write_text(f"deb [trusted=yes] file:{archive} ./\n")
    settings = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": folder / "cache",
        "APT::Architecture": "amd64",
        "APT::Architectures": "amd64",
        "APT::Sandbox::User": "root",
    }
    configuration = folder / "apt.conf"
    configuration.write_text("".join(f'{key} "{value}";\n' for key, value in settings.items()))
    return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "APT_CONFIG": str(configuration)}
