"""The portal as a service, by the pages of the documentation, in a booted Debian with a real OpenStack outside.

What the pages say to type is typed as it is. What needs no running machine (packages, the virtual environment) is typed
in the root of the disk before it boots, since emulated it would take minutes; all else in two boots. Each start of the
portal takes an emulated processor about a minute.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sqlite3
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from gpuyard.site.load import LoadedSite
from gpuyard_lab import control
from gpuyard_lab.catalog import APIS
from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from gpuyard_lab.portal import apply_site
from tests.contract.store_migrations import make_e126ab2
from tests.integration.conftest import SDK_WARNINGS, RunningLab, start_lab
from tests.support import uv
from tests.support.on_request import only_by
from tests.support.sites import flavor, site
from tests.support.sysfs import T4, Sysfs
from tests.virtual_hypervisor import testing
from tests.virtual_hypervisor.cloud_server import GATEWAY, CloudServer
from tests.virtual_hypervisor.debian_root import packed, unpacked

pytestmark = [
    pytest.mark.virtual, pytest.mark.lab, pytest.mark.slow,
    only_by("machine", "ten minutes"),
    pytest.mark.flaky(reruns=0),  # each would boot it again
    *(pytest.mark.filterwarnings(f"ignore::{warning.__module__}.{warning.__qualname__}") for warning in SDK_WARNINGS),
]  # fmt: skip

ROOT = Path(__file__).parents[2]
SERVICE, DATABASE = "run-as-a-service", "back-up-and-restore"
GIVEN = "root/given"
"""Where somebody is who installs: the wheel, the site file, clouds.yaml."""
VERSIONS = "versions.txt"
DOCUMENTED_BACKUP = "/var/backups/gpuyard/mysite-20261122T030000Z.db"
DYNAMIC = range(61184, 65520)
"""Ids of users that systemd makes for as long as a service runs."""
FAR = 4070908800
"""A start in the year 2099, as the database has it."""
PATIENCE = 1800.0
"""Seconds for one boot, and all that is typed in it, where others want the processors too."""
AUTHORITIES = Path(os.environ.get("SSL_CERT_FILE") or "/etc/ssl/certs/ca-certificates.crt")
"""Whom this machine believes, so that the other one may get packages by the same ways."""

CHECKS = r"""
say() { echo "portal: $*"; echo "clock: $(cut -d. -f1 /proc/uptime) s"; }
give_up() { journalctl --no-pager -o cat -n 60; say "gave up at line $1"; poweroff; }
set -E
trap 'give_up $LINENO' ERR
answer() {
    exec 3<>/dev/tcp/127.0.0.1/8080 && printf 'GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3 && head -n 1 <&3
}
serves() {
    for _ in $(seq 120); do
        (answer) 2>/dev/null | grep -q " 200 " && echo yes && return
        sleep 1
    done
    echo no
}
restarts() { systemctl show -P NRestarts gpuyard; }
bookers() {
    python3 -c "import sqlite3
print(*(name for name, in sqlite3.connect('/var/lib/gpuyard/mysite.db').execute('select user_name from bookings')))"
}
"""
FIRST = r"""#!/bin/bash
exec >/dev/ttyS0 2>&1
. /root/checks
cd /root/given
@INSTALL@
say "started: $(serves), $(restarts) restarts, $(systemctl show -P StatusText gpuyard)"
say "user: $(stat -c %u "/proc/$(systemctl show -P MainPID gpuyard)")"
@NIGHTLY@
say "timer: $(systemctl is-active gpuyard-backup.timer)"

systemctl stop gpuyard
cp /root/old.db /var/lib/gpuyard/mysite.db
@UPGRADE@
say "upgraded: $(serves), booked by $(bookers)"
say "copies: $(ls /var/lib/gpuyard | sed -n 's/mysite.db.before-//p' | tr '\n' ' ')"

kill -9 "$(systemctl show -P MainPID gpuyard)"
until [ "$(restarts)" = 1 ] && [ "$(systemctl is-active gpuyard)" = active ]; do sleep 1; done
say "killed: $(serves), $(restarts) restarts, booked by $(bookers)"

rm /var/backups/gpuyard/*
systemctl start gpuyard-backup
OS_CLIENT_CONFIG_FILE=/etc/gpuyard/credentials/clouds.yaml /opt/gpuyard/bin/gpuyard booking create \
    --os-cloud somebody --url http://127.0.0.1:8080 --pool t4 --start +1h --end +2h
say "booked: by $(bookers)"
PATH=$PATH:/opt/gpuyard/bin
@EXPORT@
systemctl stop gpuyard
say "stopped: $(systemctl show -P Result gpuyard), $(systemctl show -P ExecMainStatus gpuyard)"
@RESTORE@ --yes | sed 's/^/portal: restore: /'
say "restored: booked by $(bookers)"
systemctl disable first
systemctl enable second
sync
reboot
"""
SECOND = r"""#!/bin/bash
exec >/dev/ttyS0 2>&1
. /root/checks
say "rebooted: $(serves), $(restarts) restarts, booked by $(bookers)"
say "exposure: $(systemd-analyze security --no-pager gpuyard | grep -o 'level for .*: [0-9.]*')"
systemctl stop gpuyard
say "ended: $(systemctl show -P Result gpuyard), $(systemctl show -P ExecMainStatus gpuyard)"
journalctl --no-pager -o cat -u gpuyard -u gpuyard-backup | sed 's/^/journal: /'
poweroff
"""
ONCE = """\
[Unit]
After=multi-user.target
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/root/{name}
[Install]
WantedBy=default.target
"""
FORWARD = """\
[Socket]
ListenStream=127.0.0.1:{port}
[Install]
WantedBy=sockets.target
"""
FORWARDED = f"""\
[Service]
ExecStart=/lib/systemd/systemd-socket-proxyd {GATEWAY}:{{port}}
"""
GETTY = "serial-getty@ttyS0.service"
"""It begins once the boot is over, and hangs up on whoever has the line then."""
NETWORK = "[Match]\nName=en* eth*\n[Network]\nDHCP=yes\n"


def typed(page: str, heading: str) -> list[str]:
    """The indented blocks of a section of a page, each as it is typed."""
    text = (ROOT / f"docs/how-to/{page}.md").read_text().split(f"# {heading}\n", 1)[1]
    section = re.split(r"^#+ ", text, maxsplit=1, flags=re.MULTILINE)[0]
    blocks = re.findall(r"(?:^ {4}.*\n)+", section, re.MULTILINE)
    return [re.sub("^ {4}", "", block, flags=re.MULTILINE) for block in blocks]


def the_site(folder: Path) -> LoadedSite:
    """Its GPUs are those that the old database knows."""
    folder.mkdir()
    document = {
        "site": "mysite",
        "booking": {"must_book": False},
        "pools": {"t4": {"models": [T4]}},
        "flavors": {"one": flavor(gpus={"t4": 1})},
        "projects": {"demo": {"gpus": {"t4": 2}}},
    }
    host = Sysfs()
    for group, address in enumerate(("01:00.0", "02:00.0"), 1):
        host.function(address, T4, group=group, numa_node="0")
    return site(folder, document, {"gpu-1": host})


def left_by_e126ab2(folder: Path) -> bytes:
    """Its database, with a booking that is still to come."""
    file = folder / "old.db"
    make_e126ab2(f"sqlite:///{file}")
    with closing(sqlite3.connect(file)) as database:
        for table in ("bookings", "occupancy"):
            database.execute(f"update {table} set starts = ?, ends = ?", (FAR, FAR + 3600))  # noqa: S608
        database.execute("insert into enforcement values ('', 'site', 'mysite')")  # it has served this site
        database.commit()
    return file.read_bytes()


def clouds(lab: RunningLab) -> bytes:
    """clouds.yaml of the page's `mycloud`, and of one of its users."""
    lab_clouds = YAML(typ="safe").load(lab.status.clouds_file.read_text())["clouds"]
    text = io.StringIO()
    YAML().dump({"clouds": {"mycloud": lab_clouds[ADMIN_CLOUD], "somebody": lab_clouds[DEMO_CLOUD]}}, text)
    return text.getvalue().encode()


def give_the_wheel(root: Path) -> None:
    """And the versions that the lock file has of what it needs."""
    export = "export -q --frozen --no-hashes --no-emit-project --no-default-groups --extra=server -o"
    for command in (["build", "-q", "--wheel", "--out-dir"], export.split()):
        target = root / GIVEN / (VERSIONS if "export" in command else "")
        subprocess.run([uv.program(), *command, str(target)], check=True, cwd=ROOT, capture_output=True)


def in_root(root: Path, *scripts: str) -> str:
    """Type this in the root of the machine, where it finds the network of this one. What it says."""
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    environment = {
        **proxies, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive",
        "PIP_CONSTRAINT": f"/{GIVEN}/{VERSIONS}", "GPUYARD_PORT": "0",  # 8080 may be somebody's here
    }  # fmt: skip
    if AUTHORITIES.exists():
        shutil.copy(AUTHORITIES, root / GIVEN)
        environment["PIP_CERT"] = f"/{GIVEN}/{AUTHORITIES.name}"
    script = "\n".join(["set -ex", f"cd /{GIVEN}", *scripts])
    done = subprocess.run(["chroot", str(root), "bash", "-c", script], env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def give_the_site(root: Path, lab: RunningLab, loaded: LoadedSite) -> None:
    given = {path.name: path.read_bytes() for path in loaded.path.parent.iterdir()} | {"clouds.yaml": clouds(lab)}
    for name, content in given.items():
        (root / GIVEN / name).write_bytes(content)


def machine(root: Path, folder: Path, lab: RunningLab) -> None:
    """What this machine has that any other has not: the lab at its own loopback address, and what it does at boot."""
    (root / "root/old.db").write_bytes(left_by_e126ab2(folder))
    (root / "etc/cloud/cloud-init.disabled").touch()
    (root / "etc/systemd/network/10-any.network").write_text(NETWORK)
    (root / "root/checks").write_text(CHECKS)
    units = {f"{name}.service": ONCE.format(name=name) for name in ("first", "second")}
    ports = [lab.lab.port_base + api.offset for api in APIS]
    units |= {f"forward-{port}.socket": FORWARD.format(port=port) for port in ports}
    units |= {f"forward-{port}.service": FORWARDED.format(port=port) for port in ports}
    for name, text in units.items():
        (root / "etc/systemd/system" / name).write_text(text)
    for name, script in (("first", first_boot()), ("second", SECOND)):
        (root / "root" / name).write_text(script)
        (root / "root" / name).chmod(0o755)
    enabled = ["first", *(name for name in units if name.endswith(".socket"))]
    for verb, which in (("enable", enabled), ("mask", [GETTY])):
        subprocess.run(["chroot", str(root), "systemctl", "-q", verb, *which], check=True)


def the_installation() -> tuple[str, str, str]:
    """What the page says to type first: for the virtual environment, for the files in /etc, and for systemd."""
    lines = typed(SERVICE, "How to run gpuyard as a service")[0].splitlines(keepends=True)
    (installed,) = [number for number, line in enumerate(lines, 1) if "pip install" in line]
    started = next(number for number, line in enumerate(lines) if line.startswith("systemctl"))
    return "".join(lines[:installed]), "".join(lines[installed:started]), "".join(lines[started:])


def first_boot() -> str:
    """All else."""
    page = typed(DATABASE, "How to back up and restore")
    (export,) = [block for block in page if block.startswith("export ")]
    (restore,) = [line for block in page for line in block.splitlines() if line.startswith("gpuyard db restore")]
    parts = {
        "INSTALL": the_installation()[2],
        "NIGHTLY": typed(SERVICE, "A backup each night")[0],
        "UPGRADE": typed(SERVICE, "Upgrade")[0],
        "EXPORT": export,
        "RESTORE": restore.replace(DOCUMENTED_BACKUP, "/var/backups/gpuyard/mysite-*Z.db"),
    }
    return re.sub("@([A-Z]+)@", lambda match: parts[match[1]].rstrip("\n"), FIRST)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> CloudServer:
    """After two boots."""
    build = testing.prepared()
    image = testing.cloud(build)
    folder = tmp_path_factory.mktemp("portal")
    loaded = the_site(folder / "site")
    environment, files, _ = the_installation()
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(start_lab, folder / "lab", site=loaded.path)
        try:
            root = unpacked(image, folder / "root")
            (root / GIVEN).mkdir()
            give_the_wheel(root)
            shutil.copyfile("/etc/resolv.conf", root / "etc/resolv.conf")
            in_root(root, "apt-get -q update", environment)
        finally:
            lab = starting.result()
    try:
        apply_site(lab.lab, loaded)
        give_the_site(root, lab, loaded)
        in_root(root, files)
        looked = in_root(root, typed(SERVICE, "Look before you start")[0])
        assert "ok: database: will be made when it starts\nok: cloud: mycloud answers\n" in looked, looked
        machine(root, folder, lab)
        disk = packed(root, folder / "installed", 2048)
        shutil.rmtree(root)
        server = CloudServer(build, disk, folder, None, {}, gpus=0, memory_mib=1024)
        disk.unlink()
        server.boot(PATIENCE)
        if "gave up" not in server.console:
            server.boot(PATIENCE)
        server.disk.unlink()
    finally:
        control.down(lab.settings)
    return server


@pytest.fixture(scope="module")
def said(server: CloudServer) -> dict[str, str]:
    """What it says of the portal, by the word before it; several lines become one."""
    texts: dict[str, str] = {}
    for name, text in re.findall("^portal: ([a-z]+): (.*)$", server.console.replace("\r", ""), re.MULTILINE):
        texts[name] = f"{texts[name]}; {text}" if name in texts else text
    assert "gave up" not in server.console, server.console
    return texts


def test_it_serves_when_the_page_has_been_typed(said: dict[str, str]) -> None:
    assert said["started"] == "yes, 0 restarts, serves at http://127.0.0.1:8080"
    assert int(said["user"]) in DYNAMIC
    assert said["timer"] == "active"


def test_an_upgrade_keeps_the_booking_of_an_older_database(said: dict[str, str]) -> None:
    assert said["upgraded"] == "yes, booked by ada"
    assert "ledger-0004" in said["copies"].split(), "and what was there before"


def test_it_survives_a_kill_and_a_reboot(said: dict[str, str]) -> None:
    assert said["killed"] == "yes, 1 restarts, booked by ada"
    assert said["rebooted"] == "yes, 0 restarts, booked by ada"


def test_a_restore_says_what_is_lost_and_loses_no_more(said: dict[str, str]) -> None:
    assert said["booked"] == "by ada demo"
    assert "1 booking made since will be unknown" in said["restore"]
    assert said["restored"] == "booked by ada"


def test_it_ends_well_and_complains_of_nothing_that_its_unit_forbids(said: dict[str, str], server: CloudServer) -> None:
    assert said["stopped"] == said["ended"] == "success, 0"
    assert said["exposure"] == "level for gpuyard.service: 1.1"
    journal = [line for line in server.console.splitlines() if line.startswith("journal: ")]
    assert len(journal) > 10
    assert [line for line in journal if re.search("Traceback|[Dd]enied|not permitted|Read-only|ERROR", line)] == []
