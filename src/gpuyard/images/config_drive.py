"""Makes the config drive of a server that an image is checked with, as nova-compute does.

The drive is laid out as Nova's (nova/virt/configdrive.py, nova/api/metadata/base.py), and made with the same
options; a test holds it against the drive that Nova's own code makes.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpuyard.images.programs import run

PROGRAMS = {"genisoimage": "genisoimage"}
LABEL = "config-2"
PUBLISHER = "OpenStack Compute"
MAC = "fa:16:3e:5c:01:02"


def drive_files(name: str, uuid: str, user_data: str) -> dict[str, bytes]:
    """Return path -> content, for a server in a network with DHCP."""
    meta: dict[str, Any] = {
        "uuid": uuid,
        "hostname": name,
        "name": name,
        "launch_index": 0,
        "availability_zone": "nova",
        "project_id": "gpuyard",
        "random_seed": "",
        "devices": [],
    }
    network: dict[str, Any] = {
        "links": [{"id": "tap0", "type": "ovs", "ethernet_mac_address": MAC, "mtu": 1500, "vif_id": "port"}],
        "networks": [{"id": "network0", "link": "tap0", "network_id": "network", "type": "ipv4_dhcp"}],
        "services": [],
    }
    files: dict[str, bytes] = {}
    for version in ("2018-08-27", "latest"):
        files |= {
            f"openstack/{version}/meta_data.json": json.dumps(meta).encode(),
            f"openstack/{version}/network_data.json": json.dumps(network).encode(),
            f"openstack/{version}/vendor_data.json": b"{}",
            f"openstack/{version}/vendor_data2.json": b"{}",
            f"openstack/{version}/user_data": user_data.encode(),
        }
    return files


def make_drive(files: dict[str, bytes], drive: Path) -> None:
    """Write the ISO. Raises GpuyardError."""
    with TemporaryDirectory() as folder:
        for path, content in files.items():
            place = Path(folder) / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        command = ["genisoimage", "-o", str(drive), "-ldots", "-allow-lowercase", "-allow-multidot", "-l"]
        command += ["-publisher", PUBLISHER, "-quiet", "-J", "-r", "-V", LABEL, folder]
        run(command, f"the config drive {drive.name}")
