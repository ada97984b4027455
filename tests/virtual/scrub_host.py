"""A hypervisor whose GPUs have memory that a reset of their bus clears, and no lesser reset does.

Underneath is e1000e: 40 KiB of packet memory in BAR 0, PM reset by the kernel's list (which QEMU makes nothing of), no
FLR. So what was left behind by one VM is there for the next one, unless somebody resets the bus.
"""

from __future__ import annotations

from tests.virtual_hypervisor import topology
from tests.virtual_hypervisor.board import Board, Iommu, Model
from tests.virtual_hypervisor.topology import VirtualHost

H100 = Model("h100", "e1000e", "10de:2331", "030200", "a1", "10de:1626")
AUDIO = Model("h100-audio", "intel-hda", "10de:22ba", "040300", "a1", "10de:1626")
FRAIL = Model("h100-frail", "e1000e", "10de:2330", "030200", "a1", "10de:16c1", dies=True)

LONE = "0000:18:00.0"
PAIR = ("0000:27:00.0", "0000:28:00.0")
"""Two cards on two buses, in one IOMMU group."""
CARD = ("0000:3b:00.0", "0000:3b:00.1")
"""A GPU and its companion."""
DYING = "0000:5e:00.0"
GIVEN = {LONE: H100, **dict.fromkeys(PAIR, H100), CARD[0]: H100, CARD[1]: AUDIO, DYING: FRAIL}


def scrub_host() -> VirtualHost:
    board = Board(Iommu.INTEL, nodes=1)
    topology.server(board)
    (lone,) = board.ports(board.host_bridge(0x17, 0))
    board.plug(H100, lone, "18:00.0")
    for number, port in enumerate(board.ports(board.host_bridge(0x26, 0), 2, acs=False), 0x27):
        board.plug(H100, port, f"{number:02x}:00.0")
    (card,) = board.ports(board.host_bridge(0x3A, 0))
    board.plug(H100, card, "3b:00.0", multifunction="on")
    board.plug(AUDIO, card, "3b:00.1")
    (frail,) = board.ports(board.host_bridge(0x5D, 0))
    board.plug(FRAIL, frail, "5e:00.0")
    ids = ",".join(dict.fromkeys(model.ids for model in GIVEN.values()))
    return VirtualHost(
        name="scrub", hostname="gpu-h100", cpu_model="Intel(R) Xeon(R) Platinum 8480C", disk_gib=900, board=board,
        command_line=("intel_iommu=on", "modprobe.blacklist=nouveau,e1000e"),
        about="GPUs whose memory a reset of the bus clears",
        prepare=f"mkdir -p /etc/modprobe.d\necho options vfio-pci ids={ids} >/etc/modprobe.d/vfio.conf\n"
        "modprobe vfio-pci\n",
    )  # fmt: skip
