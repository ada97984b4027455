"""Makes the config drive of a server, with Nova's own code: ``python -m tests.virtual_hypervisor.config_drive``.

A process of its own, since Nova's modules set up the process that they are loaded into. What Nova would ask its
database and Neutron for is given here; everything that is on the drive is Nova's doing.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

from tests.virtual_hypervisor import build as building

MAC = "fa:16:3e:5c:01:02"
UUID = "7b5c9a52-21a0-4c53-9c61-0c6e4e4d5f10"
NETWORK = {"cidr": "10.0.2.0/24", "gateway": "10.0.2.2", "address": "10.0.2.15"}
"""Of QEMU's user networking."""


def config_drive(folder: Path, name: str, user_data: str, metadata: Mapping[str, str], install: bool = False) -> Path:
    """An ISO as nova-compute would attach it to the server `name`. Raises Missing."""
    building.need_commands({"genisoimage": "genisoimage"}, install)
    given, drive = folder / "user-data", folder / "config-drive.iso"
    given.write_text(user_data)
    pairs = [f"{key}={value}" for key, value in metadata.items()]
    building.run([sys.executable, "-W", "ignore", "-m", __name__, str(drive), name, str(given), *pairs])
    return drive


def main(drive: str, name: str, given: str, *pairs: str) -> None:
    from nova import conf, config, context, objects
    from nova.api.metadata.base import InstanceMetadata
    from nova.network import model
    from nova.virt.configdrive import ConfigDriveBuilder

    config.parse_args(["nova"], default_config_files=[])
    conf.CONF.set_override("mkisofs_cmd", building.which("genisoimage"))
    objects.register_all()
    subnet = model.Subnet(
        cidr=NETWORK["cidr"],
        dns=[],
        gateway=model.IP(address=NETWORK["gateway"], type="gateway"),
        ips=[model.FixedIP(address=NETWORK["address"])],
        routes=[],
        dhcp_server=NETWORK["gateway"],
    )
    network = model.Network(id="n", bridge="br-int", label="runners", subnets=[subnet], mtu=1500)
    vif = model.VIF(id="p", address=MAC, network=network, type="ovs", devname="tap0")
    instance = objects.Instance(
        context.get_admin_context(),
        id=1,
        uuid=UUID,
        hostname=name,
        display_name=name,
        project_id="5f1a",
        user_id="5f1b",
        launch_index=0,
        key_name=None,
        image_ref="",
        kernel_id="",
        ramdisk_id="",
        host="gpu-1",
        availability_zone="nova",
        root_device_name="/dev/vda",
        default_ephemeral_device=None,
        default_swap_device=None,
        reservation_id="r-1",
        metadata=dict(pair.split("=", 1) for pair in pairs),
        system_metadata={},
        user_data=base64.b64encode(Path(given).read_bytes()).decode(),
        flavor=objects.Flavor(name="gpu.v100", id=1),
        ec2_ids=objects.EC2Ids(instance_id="i-1", ami_id="ami-1", kernel_id=None, ramdisk_id=None),
        keypairs=objects.KeyPairList(objects=[]),
        device_metadata=None,
        numa_topology=None,
        info_cache=objects.InstanceInfoCache(network_info=model.NetworkInfo([vif])),
    )
    no_disks = objects.BlockDeviceMappingList(objects=[])
    groups = "nova.network.security_group_api.get_instance_security_groups"
    with (
        patch.object(objects.Instance, "get_bdms", lambda _: no_disks),
        patch(groups, lambda *_: [{"name": "default"}]),
    ):
        shown = InstanceMetadata(instance, extra_md={}, network_info=model.NetworkInfo([vif]))
        with ConfigDriveBuilder(instance_md=shown) as builder:
            builder.make_drive(drive)


if __name__ == "__main__":
    main(*sys.argv[1:])
