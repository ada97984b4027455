"""Real hosts as virtual machines: one function a host.

The operators of these six machines published how they give GPUs to VMs. Addresses, ids, classes, revisions and IOMMU
groups of the GPUs are what they show. Where they show nothing (often the CPU, memory and disk, most subsystem ids, the
NUMA nodes, the board around the GPUs) it is what such machines have; mixed-consumer is known by its ids only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.virtual_hypervisor.board import Bar, Board, Bus, Iommu, Model

# Data-centre GPUs work through `edu`: MMIO, MSI and a DMA engine, so DMA and isolation can be tested. A Tesla has
# BAR 0 with its registers, BAR 1 with (a window on) its memory, and BAR 3.
V100 = Model(
    "v100",
    "edu",
    "10de:1db4",
    "030200",
    "a1",
    "10de:1214",
    (Bar(0, 16), Bar(1, 16384, wide=True), Bar(3, 32, wide=True)),
    inner="edu-mmio[0]",
)
K40C = Model(
    "k40c",
    "edu",
    "10de:1024",
    "030200",
    "a1",
    "10de:0983",
    (Bar(0, 16), Bar(1, 256, wide=True), Bar(3, 32, wide=True)),
    inner="edu-mmio[0]",
)
# The only device of QEMU 7 with SR-IOV is nvme. As class 0302 it is left alone by the driver of that.
T4 = Model(
    "t4",
    "nvme",
    "10de:1eb8",
    "030200",
    "a1",
    "10de:12a2",
    (Bar(0, 16), Bar(1, 256, wide=True), Bar(3, 32, wide=True)),
    inner="nvme-bar0[0]",
)
# Cards with a display work through bochs-display, because a driver of the kernel can then hold them (bochs-drm, in
# the place of nouveau or nvidia). The BARs stay those of bochs-display, or that driver would not start.
TITAN_XP = Model("titan-xp", "bochs-display", "10de:1b02", "030000", "a1", "10de:11df")
GTX_TITAN = Model("gtx-titan", "bochs-display", "10de:1005", "030000", "a1", "10de:1035")
QUADRO_K4200 = Model("k4200", "bochs-display", "10de:11b4", "030000", "a1", "10de:1096")
TITAN_XP_AUDIO = Model("titan-xp-audio", "intel-hda", "10de:10ef", "040300", "a1", "10de:11df")
GTX_TITAN_AUDIO = Model("gtx-titan-audio", "intel-hda", "10de:0e1a", "040300", "a1", "10de:1035")
QUADRO_K4200_AUDIO = Model("k4200-audio", "intel-hda", "10de:0e0a", "040300", "a1", "10de:1096")
# What every server has beside its GPUs.
BMC_BRIDGE = Model("bmc-bridge", "pcie-pci-bridge", "1a03:1150", "060400", "04", "0:0")
BMC_DISPLAY = Model("bmc-display", "VGA", "1a03:2000", "030000", "41", "1a03:2000")
SSD = Model("ssd", "nvme", "144d:a808", "010802", "00", "144d:a801")

# no_timer_check: on a busy machine the emulated timer is late, and the kernel would take it for broken and give up.
CONSOLE = ("console=ttyS0", "quiet", "panic=-1", "no_timer_check")
# Without IPv6: whether its link-local address is settled yet when it is recorded is a matter of luck.
UPLINK = """\
modprobe e1000e
$BUSYBOX ip link set eth0 name eno1
echo 1 >/proc/sys/net/ipv6/conf/eno1/disable_ipv6
$BUSYBOX ip addr add 192.0.2.10/24 dev eno1
$BUSYBOX ip link set eno1 up
$BUSYBOX ip route add default via 192.0.2.1 dev eno1
"""


@dataclass(frozen=True)
class VirtualHost:
    """Everything that is needed to start one virtual hypervisor."""

    name: str
    """Of the recording."""
    hostname: str
    cpu_model: str
    disk_gib: int
    board: Board
    command_line: tuple[str, ...]
    """Kernel options beyond CONSOLE: those of the real host."""
    about: str
    """What its hardware is, for the note in the recording."""
    groups: Mapping[str, int] = field(default_factory=dict)
    """GPU -> number of its IOMMU group, where it is known."""
    facts: Mapping[str, int] = field(default_factory=dict)
    """Facts of the real machine that the virtual one cannot have."""
    prepare: str = UPLINK
    """Shell commands that make the machine what the job shall find."""


def epyc_v100(exact: bool = True, iommu: Iommu = Iommu.AMD) -> VirtualHost:
    """Six V100 in four IOMMU groups, 19 32 75 87. Without `exact` the numbers differ, and it starts much faster.

    With another `iommu` it is no longer that host, but its GPUs can do DMA (Intel) or cannot be given away (none).
    """
    board = Board(iommu)
    server(board)
    if exact:
        board.peripherals(4)
    # (bus of the first GPU, NUMA node, GPUs behind ports without ACS, empty ports before them)
    for first, node, gpus, empty in ((0x27, 0, 2, 0), (0x44, 0, 1, 12), (0xA3, 1, 1, 42), (0xC3, 1, 2, 11)):
        before = empty if exact else 0
        bus = board.host_bridge(first - before - 1, node)
        board.empty_ports(bus, before)
        for number, port in enumerate(board.ports(bus, gpus, acs=False), first):
            board.plug(V100, port, f"{number:02x}:00.0")
    return VirtualHost(
        name="epyc-v100",
        hostname="gpu-server",
        cpu_model="AMD EPYC 7352 24-Core Processor",
        disk_gib=1800,
        board=board,
        command_line=(
            "intel_iommu=on" if iommu is Iommu.INTEL else "amd_iommu=on",
            "iommu=pt",
            "vfio-pci.ids=10de:1db4",
            "vfio_iommu_type1.allow_unsafe_interrupts=1",
            "modprobe.blacklist=nvidiafb,nouveau",
        ),
        about="6 Tesla V100 in 4 IOMMU groups, two of them shared by two GPUs; GPUs on vfio-pci by vfio-pci.ids=",
        groups={
            "0000:27:00.0": 19,
            "0000:28:00.0": 19,
            "0000:44:00.0": 32,
            "0000:a3:00.0": 75,
            "0000:c3:00.0": 87,
            "0000:c4:00.0": 87,
        }
        if exact
        else {},
        facts={"cpus": 48, "memory_mib": 515072},
        prepare=UPLINK + "modprobe vfio-pci\n",
    )


def t4_node() -> VirtualHost:
    """Four T4, each alone, and each with SR-IOV: Nova calls such a GPU type-PF."""
    board = Board()
    server(board)
    for number, node in ((0x18, 0), (0x3B, 0), (0x86, 1), (0xAF, 1)):
        (port,) = board.ports(board.host_bridge(number - 1, node))
        subsystem = board.nvme_subsystem()
        board.plug(
            T4,
            port,
            f"{number:02x}:00.0",
            serial=f"t4-{number:02x}",
            subsys=subsystem,
            sriov_max_vfs=16,
            # What nvme insists on for that many virtual functions.
            max_ioqpairs=34,
            msix_qsize=33,
            sriov_vq_flexible=32,
            sriov_vi_flexible=32,
        )
    return VirtualHost(
        name="t4-node",
        hostname="cld-dfa-gpu-02",
        cpu_model="Intel(R) Xeon(R) Gold 6226R CPU @ 2.90GHz",
        disk_gib=7000,
        board=board,
        command_line=("intel_iommu=on", "modprobe.blacklist=nouveau"),
        about="4 Tesla T4 with SR-IOV (16 virtual functions, none switched on), each alone in its IOMMU group; on "
        "vfio-pci by modprobe.d",
        facts={"cpus": 64, "memory_mib": 393216},
        prepare=UPLINK + _vfio_ids("10de:1eb8"),
    )


def titan_xp_node(exact: bool = True, bound: bool = True) -> VirtualHost:
    """Two Titan Xp, each VGA and audio in one group: 39 for the first; without `exact` another one.

    Unless `bound`, they are with the drivers that a machine fresh from installation would have.
    """
    board = Board()
    server(board)
    if exact:
        board.peripherals(17)
    for number, node, before in ((0x18, 0, 8), (0x86, 1, 0)):
        empty = before if exact else 0
        bus = board.host_bridge(number - empty - 1, node)
        board.empty_ports(bus, empty)
        (port,) = board.ports(bus)
        _card(board, port, number, TITAN_XP, TITAN_XP_AUDIO)
    return VirtualHost(
        name="titan-xp-node",
        hostname="cld-dfa-gpu-01",
        cpu_model="Intel(R) Xeon(R) Gold 6134 CPU @ 3.20GHz",
        disk_gib=3500,
        board=board,
        command_line=("intel_iommu=on", "modprobe.blacklist=nouveau"),
        about="2 Titan Xp, each a display and an audio function in one IOMMU group; all four on vfio-pci by modprobe.d",
        groups={"0000:18:00.0": 39, "0000:18:00.1": 39} if exact else {},
        facts={"cpus": 32, "memory_mib": 262144},
        prepare=UPLINK + (_vfio_ids("10de:1b02,10de:10ef") if bound else _natives("0000:18:00.0", "0000:86:00.0")),
    )


def mixed_consumer() -> VirtualHost:
    """Two cards of different generations, on the drivers that a machine fresh from installation would have."""
    board = Board()
    server(board)
    for number, node, display, audio in (
        (0x3B, 0, TITAN_XP, TITAN_XP_AUDIO),
        (0xAF, 1, GTX_TITAN, GTX_TITAN_AUDIO),
    ):
        (port,) = board.ports(board.host_bridge(number - 1, node))
        _card(board, port, number, display, audio)
    return VirtualHost(
        name="mixed-consumer",
        hostname="cld-dfa-gpu-03",
        cpu_model="Intel(R) Xeon(R) Gold 6134 CPU @ 3.20GHz",
        disk_gib=3500,
        board=board,
        command_line=("intel_iommu=on",),
        about="a Titan Xp and a GTX Titan, each a display and an audio function in one IOMMU group; not prepared: the "
        "displays are held by bochs-drm (in the place of nouveau), the audio functions by snd_hda_intel",
        facts={"cpus": 32, "memory_mib": 262144},
        prepare=UPLINK + _natives("0000:3b:00.0", "0000:af:00.0"),
    )


def hyper18() -> VirtualHost:
    """One K40c in a hypervisor that also runs VMs without a GPU."""
    board = Board()
    server(board)
    bus = board.host_bridge(0x80, 1)
    board.empty_ports(bus, 5)
    (port,) = board.ports(bus)
    board.plug(K40C, port, "86:00.0")
    return VirtualHost(
        name="hyper18",
        hostname="hyper18",
        cpu_model="Intel(R) Xeon(R) CPU E5-2620 v3 @ 2.40GHz",
        disk_gib=900,
        board=board,
        command_line=("intel_iommu=on",),
        about="1 Tesla K40c, no driver bound",
        facts={"cpus": 24, "memory_mib": 131072},
    )


def quadro_k4200() -> VirtualHost:
    """Two Quadro K4200 on the root bus of the second socket."""
    board = Board()
    server(board)
    bus = board.host_bridge(0x80, 1)
    for number in (0x84, 0x88):
        board.empty_ports(bus, 3)
        (port,) = board.ports(bus)
        _card(board, port, number, QUADRO_K4200, QUADRO_K4200_AUDIO)
    return VirtualHost(
        name="quadro-k4200",
        hostname="c4130",
        cpu_model="Intel(R) Xeon(R) CPU E5-2640 v4 @ 2.40GHz",
        disk_gib=900,
        board=board,
        command_line=("intel_iommu=on", "vfio_iommu_type1.allow_unsafe_interrupts=1", "modprobe.blacklist=nouveau"),
        about="2 Quadro K4200, each a display and an audio function in one IOMMU group; all four on vfio-pci by "
        "modprobe.d",
        facts={"cpus": 40, "memory_mib": 262144},
        prepare=UPLINK + _vfio_ids("10de:11b4,10de:0e0a"),
    )


HOSTS: dict[str, Callable[[], VirtualHost]] = {
    "epyc-v100": epyc_v100,
    "t4-node": t4_node,
    "titan-xp-node": titan_xp_node,
    "mixed-consumer": mixed_consumer,
    "hyper18": hyper18,
    "quadro-k4200": quadro_k4200,
}


def server(board: Board) -> None:
    """What a server needs for itself: a network card, the disk with its root, and the display of its BMC."""
    network, disk, management = board.ports(board.root, 3)
    board.need("-netdev", "user,id=uplink,restrict=on,ipv6=off")  # a link, and no way out
    board.plug("e1000e", network, "01:00.0", netdev="uplink", mac="52:54:00:12:34:56")
    board.plug(SSD, disk, "02:00.0", serial="root-disk", drive="root-disk")
    bridge = board.plug(BMC_BRIDGE, management, "03:00.0")
    behind = Bus(bridge, management.number + 1, board.root.arguments)
    board.root.next_bus += 1
    board.plug(BMC_DISPLAY, behind, "04:01.0")


def _card(board: Board, port: Bus, number: int, display: Model, audio: Model) -> None:
    """A graphics card: its display is function 0, and its audio, with a codec behind it, function 1."""
    board.plug(display, port, f"{number:02x}:00.0", multifunction="on")
    name = board.plug(audio, port, f"{number:02x}:00.1")
    board.need("-audiodev", f"none,id=silence{number}")
    # Without a codec ALSA gives the controller up, and the function would be left without a driver.
    port.arguments += ["-device", f"hda-output,bus={name}.0,audiodev=silence{number}"]


def _vfio_ids(ids: str) -> str:
    """What is on most prepared hosts: ids in modprobe.d, then the module."""
    return f"mkdir -p /etc/modprobe.d\necho options vfio-pci ids={ids} >/etc/modprobe.d/vfio.conf\nmodprobe vfio-pci\n"


def _natives(*displays: str) -> str:
    return "modprobe snd_hda_intel\n" + bochs(*displays)


def bochs(*addresses: str) -> str:
    """Bind displays to bochs-drm, which does not know their ids."""
    bind = "echo bochs-drm >/sys/bus/pci/devices/{0}/driver_override\necho {0} >/sys/bus/pci/drivers_probe\n"
    return "modprobe bochs\n" + "".join(bind.format(address) for address in addresses)
