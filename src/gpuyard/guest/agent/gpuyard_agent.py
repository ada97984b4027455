#!/usr/bin/python3
"""gpuyard-agent: tells the cloud's gpuyard how the GPUs of this server are.

It does nothing until the cloud asks: until the server's metadata has the key `gpuyard_agent` with an address and a
one-time code. It sends, and nothing can be sent to it: no port is open. What it sends is made in `Agent.report` and
in nothing else: for each GPU its UUID and how busy, full, hot and hungry it is, its uncorrectable memory errors, failed
row remappings, what slows it down and how the driver wants it recovered; the numbers of Xid messages of the driver; and
whether the driver answers. Nothing of processes, users or files.

To turn it off: set the server's metadata `gpuyard_agent` to `off`, or `systemctl disable --now gpuyard-agent`.

Python 3.9, standard library. It is kept below 20 MiB, so it speaks HTTP itself: http.client takes 3 MiB, random,
urllib.parse and typing 1.5.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import socket
import sys
import time
from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes memory
    from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

    Row = List[Optional[int]]

VERSION = 2
KEY = "gpuyard_agent"
METADATA = os.environ.get("GPUYARD_AGENT_METADATA", "http://169.254.169.254/openstack/latest/meta_data.json")
"""An address, or the path of a file: that of a config drive that is mounted."""
STATE = os.environ.get("STATE_DIRECTORY", "/var/lib/gpuyard-agent")
KMSG = os.environ.get("GPUYARD_AGENT_KMSG", "/dev/kmsg")
SYS = os.environ.get("GPUYARD_AGENT_SYS", "/sys")
NVML = os.environ.get("GPUYARD_AGENT_NVML", "libnvidia-ml.so.1")

ASK_AGAIN = float(os.environ.get("GPUYARD_AGENT_ASK", "60"))
"""Seconds between looks at the metadata while nobody asks for anything, and until another try after one that failed."""
LOOK_AGAIN = 10 * ASK_AGAIN
"""The same while it is on, so that `off` there is obeyed; and the longest pause between tries."""
KEPT = 60
"""Samples that are kept while they cannot be sent; the oldest go first."""
XIDS_KEPT = 200
"""Xids that wait to be sent: the last of each kind and GPU, so that what follows from a fault does not push it out."""
RECORDS = 1000
"""Of the kernel's log that are read at once."""
ANSWER = 64 * 1024
"""Bytes that are read of an answer."""
PATIENCE = float(os.environ.get("GPUYARD_AGENT_PATIENCE", "10"))
"""Seconds for an answer, of the portal or of the driver."""
STUCK = 120.0
"""Seconds after which whoever waits for the driver is killed: it may be that only a program's lock is held."""
SMI_EVERY = 60.0
"""nvidia-smi takes a second of processor time where nothing else keeps the driver awake."""
VENDORS = {"0x10de", "0x1002"}
DISPLAYS = ("0x0300", "0x0302", "0x0380", "0x1200")
"""Beginnings of the PCI classes of GPUs: VGA, 3D, other display, processing accelerator."""
XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{7,20})(?: GPU-I:\d{1,5}(?: GPU-CI:\d{1,5})?)?\): (\d{1,4})\b(.{0,300})"
)
"""As kernel_rc.c of NVIDIA's open-gpu-kernel-modules prints it: in MIG mode with the number of the GPU instance."""
RECOVERY = re.compile(r"GPU recovery action changed from 0x[0-9a-f]{1,2} \([^)]{0,40}\) to 0x([0-9a-f]{1,2}) ")
"""Of Xid 154: gpu.c there."""
LINK = re.compile(r"[A-Z0-9_/]{2,40} {1,20}(Fatal|Nonfatal) {1,20}XC[01]\b")
"""Of Xids 144 to 150, about NVLink. Some drivers print it in columns."""
URL = re.compile(r"(https?)://([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?(/[!-~]{0,1000})?")
HARDWARE = 0x8 | 0x20 | 0x40 | 0x80
"""NVML's reasons for lower clocks that somebody should know of: slowdown, thermal (software, hardware), power brake."""

# A row is use and memory (percent), temperature (degrees C), power (W), uncorrectable ECC errors since the driver was
# loaded, remapped rows (0 none, 1 wait for a reset, 2 failed), reasons for slowness, what the driver wants done (NVML's
# number of a recovery action, 0 nothing). None: not known.


class GuestCard(namedtuple("GuestCard", "uuid address row")):
    """A GPU of this server. `row` is None when it is there and does not answer."""

    __slots__ = ()


class CardsSeen(namedtuple("CardsSeen", "cards driver")):
    """GPUs, and the version of their driver."""

    __slots__ = ()


class AgentAnswer(namedtuple("AgentAnswer", "status body")):
    """Of a server of HTTP: status and body."""

    __slots__ = ()


def whole(value: object) -> Optional[int]:
    """A number of a text or another number; None when it is none, as ``[N/A]``."""
    try:
        return round(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def percent(part: Optional[int], of: Optional[int]) -> Optional[int]:
    return None if part is None or not of else min(100, part * 100 // of)


# --- NVIDIA, by its library ---


class NvmlUse(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class NvmlMemory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class NvmlPci(ctypes.Structure):
    _fields_ = [
        ("legacy", ctypes.c_char * 16), ("domain", ctypes.c_uint), ("bus", ctypes.c_uint), ("device", ctypes.c_uint),
        ("ids", ctypes.c_uint), ("subsystem", ctypes.c_uint), ("address", ctypes.c_char * 32),
    ]  # fmt: skip


class NvmlField(ctypes.Structure):
    _fields_ = [
        ("field", ctypes.c_uint), ("scope", ctypes.c_uint), ("time", ctypes.c_longlong), ("took", ctypes.c_longlong),
        ("kind", ctypes.c_uint), ("result", ctypes.c_uint), ("value", ctypes.c_uint), ("more", ctypes.c_uint),
    ]  # fmt: skip


RECOVERY_ACTION = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION."""


class Nvml:
    """libnvidia-ml. It is begun anew for each sample that finds trouble, since a driver can be loaded at any time."""

    def __init__(self, path: str) -> None:
        """Raises OSError without the library."""
        self._library = ctypes.CDLL(path)
        self._begun = False
        self._known: List[Tuple[str, str]] = []
        """UUID and address of each GPU that was there; one that is lost does not tell them any more."""

    def _call(self, name: str, *arguments: object) -> bool:
        function = getattr(self._library, name, None)  # old drivers lack some
        return function is not None and function(*arguments) == 0

    def seen(self) -> Optional[CardsSeen]:
        """None without a driver."""
        if not self._begun and not self._call("nvmlInit_v2"):
            return None
        self._begun = True
        count = ctypes.c_uint()
        if not self._call("nvmlDeviceGetCount_v2", ctypes.byref(count)):
            self._begun = False
            self._call("nvmlShutdown")
            return None
        text = ctypes.create_string_buffer(80)
        driver = text.value.decode("ascii", "replace") if self._call("nvmlSystemGetDriverVersion", text, 80) else ""
        cards = [card for card in map(self._card, range(min(count.value, 64))) if card]
        answering = {card.uuid for card in cards if card.row is not None}
        self._known += [(card.uuid, card.address) for card in cards if (card.uuid, card.address) not in self._known]
        gone = [GuestCard(*identity, None) for identity in self._known if identity[0] not in answering]
        return CardsSeen([card for card in cards if card.row is not None] + gone[:64], driver)

    def _card(self, index: int) -> Optional[GuestCard]:
        handle, text, pci = ctypes.c_void_p(), ctypes.create_string_buffer(96), NvmlPci()
        if not self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle)):
            return None
        if not self._call("nvmlDeviceGetUUID", handle, text, 96):
            return None
        self._call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
        uuid, address = text.value.decode("ascii", "replace"), pci.address.decode("ascii", "replace").lower()
        return GuestCard(uuid, address, self._row(handle))

    def _row(self, handle: ctypes.c_void_p) -> Optional[Row]:
        """None when it has fallen off the bus: then nothing of it can be read."""
        use, memory, rows = NvmlUse(), NvmlMemory(), [ctypes.c_uint() for _ in range(4)]
        hot, power, ecc, slow = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong(), ctypes.c_ulonglong()
        ref = ctypes.byref
        row: Row = [
            use.gpu if self._call("nvmlDeviceGetUtilizationRates", handle, ref(use)) else None,
            memory.used * 100 // max(1, memory.total)
            if self._call("nvmlDeviceGetMemoryInfo", handle, ref(memory))
            else None,
            hot.value if self._call("nvmlDeviceGetTemperature", handle, 0, ref(hot)) else None,
            power.value // 1000 if self._call("nvmlDeviceGetPowerUsage", handle, ref(power)) else None,
            ecc.value if self._call("nvmlDeviceGetTotalEccErrors", handle, 1, 0, ref(ecc)) else None,
            (2 if rows[3].value else 1 if rows[2].value else 0)
            if self._call("nvmlDeviceGetRemappedRows", handle, *map(ref, rows))
            else None,
            slow.value & HARDWARE
            if self._call("nvmlDeviceGetCurrentClocksThrottleReasons", handle, ref(slow))
            else None,
            self._recovery(handle),
        ]
        return None if all(value is None for value in row) else row

    def _recovery(self, handle: ctypes.c_void_p) -> Optional[int]:
        """Drivers before 560 or so do not know the field, and say so in its result."""
        value = NvmlField(field=RECOVERY_ACTION)
        called = self._call("nvmlDeviceGetFieldValues", handle, 1, ctypes.byref(value))
        return min(value.value, 255) if called and value.result == 0 else None


# --- NVIDIA, by nvidia-smi ---

ASKED = (
    "uuid,pci.bus_id,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw,"
    "ecc.errors.uncorrected.volatile.total,clocks_throttle_reasons.active,driver_version"
)


class Smi:
    """nvidia-smi, where the library is not found: seldom, for what it costs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: Tuple[float, Optional[CardsSeen]] = (-SMI_EVERY, None)

    def seen(self) -> Optional[CardsSeen]:
        now = self._clock()
        if now - self._last[0] >= SMI_EVERY:
            self._last = now, self._ask()
        return self._last[1]

    def _ask(self) -> Optional[CardsSeen]:
        import subprocess  # takes memory that most do not need

        command = ["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30, check=False)
        except (OSError, subprocess.SubprocessError):
            return None
        lines = done.stdout[:ANSWER].decode("utf-8", "replace").splitlines()
        cards = [card for card in map(smi_card, lines[:64]) if card]
        drivers = [line.rpartition(",")[2].strip() for line in lines[:1] if cards]
        return CardsSeen(cards, drivers[0] if drivers else "") if cards else None


def smi_card(line: str) -> Optional[GuestCard]:
    """One line of its table; None for what is none."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != len(ASKED.split(",")) or not fields[0].startswith("GPU-"):
        return None
    uuid, address, use, used, total, hot, power, ecc, slow, _ = fields
    try:
        reasons: Optional[int] = int(slow, 16) & HARDWARE
    except ValueError:
        reasons = None
    row = [whole(use), percent(whole(used), whole(total)), whole(hot), whole(power), whole(ecc), None, reasons, None]
    return GuestCard(uuid, address.lower(), None if all(value is None for value in row) else row)


# --- AMD, and what is on the bus ---


def text_of(path: str) -> str:
    """What a file of sysfs says; empty when it cannot be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return ""


def names(path: str) -> List[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def on_bus(root: str) -> Iterator[Tuple[str, str]]:
    """Address and vendor of each GPU that this machine sees, with a driver or without."""
    devices = os.path.join(root, "bus/pci/devices")
    for address in names(devices):
        folder = os.path.join(devices, address)
        vendor = text_of(os.path.join(folder, "vendor"))
        if vendor in VENDORS and text_of(os.path.join(folder, "class")).startswith(DISPLAYS):
            yield address, vendor


def amd_cards(root: str) -> List[GuestCard]:
    """GPUs of AMD, as the driver amdgpu shows them."""
    cards = []
    for address, vendor in on_bus(root):
        folder = os.path.join(root, "bus/pci/devices", address)
        if vendor != "0x1002" or not os.path.exists(os.path.join(folder, "mem_info_vram_total")):
            continue
        sensors = os.path.join(folder, "hwmon", (names(os.path.join(folder, "hwmon")) or ["none"])[0])
        hot = whole(text_of(os.path.join(sensors, "temp1_input")))
        watts = (text_of(os.path.join(sensors, "power1_" + suffix)) for suffix in ("average", "input"))
        power = whole(next(filter(None, watts), ""))
        used, total = (whole(text_of(os.path.join(folder, "mem_info_vram_" + suffix))) for suffix in ("used", "total"))
        row: Row = [
            whole(text_of(os.path.join(folder, "gpu_busy_percent"))), percent(used, total),
            None if hot is None else hot // 1000, None if power is None else power // 1000000, None, None, None, None,
        ]  # fmt: skip
        serial = text_of(os.path.join(folder, "unique_id"))
        cards.append(GuestCard("AMD-" + serial if serial else "", address, None if row[1] is None else row))
    return cards


# --- the process that asks the driver ---


def serve(asks: int, answers: int) -> None:
    """Answer each byte of one pipe with a line of JSON in the other: null without a driver, else cards and version."""
    library: Any = None
    while os.read(asks, 1):
        if library is None:
            try:
                library = Nvml(NVML)
            except OSError:
                library = Smi()
        reading = library.seen()
        if reading is None and isinstance(library, Smi):
            library = None  # the library may come with a driver
        cards = (reading.cards if reading else []) + amd_cards(SYS)
        line = json.dumps([cards[:64], reading.driver if reading else ""]).encode() + b"\n"
        while line:
            line = line[os.write(answers, line) :]


class DriverProcess:
    """Asks the driver in a process of its own, so that a call that never returns (as with a GPU whose GSP does not
    answer) and a library that crashes cost nothing but its answer."""

    def __init__(self, serve: Callable[[int, int], None] = serve) -> None:
        self._serve = serve
        self._pid = 0
        self._ask = self._answer = -1
        self._since: Optional[float] = None
        """When it was asked for what it has not answered yet."""
        self.stuck = False
        """It has not answered the last time."""

    def seen(self) -> Optional[CardsSeen]:
        """None when it does not answer, which is then `stuck`: it is waited for once, and looked for later."""
        try:
            line = self._line()
        except OSError:  # it has ended
            line = b""
            self._end()
        self.stuck = not line
        if not line:
            return None
        self._since = None
        cards, driver = json.loads(line)
        return CardsSeen([GuestCard(*card) for card in cards], driver)

    def _line(self) -> bytes:
        """Empty when there is none yet. Raises OSError when nobody will answer any more."""
        if not self._pid:
            self._start()
        now = time.monotonic()
        if self._since is None:
            self._since = now
            os.write(self._ask, b"?")
        line, wait = b"", 0.0 if self.stuck else PATIENCE
        while not line.endswith(b"\n"):
            if not select.select([self._answer], [], [], wait)[0]:
                if now - self._since > STUCK:
                    self._end()
                return b""
            part = os.read(self._answer, 65536)
            if not part:
                raise BrokenPipeError
            line, wait = line + part, PATIENCE
        return line

    def _start(self) -> None:
        asks, ask = os.pipe()
        answer, answers = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                os.close(ask)
                os.close(answer)
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the agent
                self._serve(asks, answers)
            finally:
                os._exit(0)
        os.close(asks)
        os.close(answers)
        self._pid, self._ask, self._answer, self._since = pid, ask, answer, None

    def _end(self) -> None:
        """Kill it. One that the kernel does not let die is left as it is, and there is no other meanwhile."""
        os.kill(self._pid, signal.SIGKILL)
        time.sleep(0.1)
        if os.waitpid(self._pid, os.WNOHANG)[0]:
            os.close(self._ask)
            os.close(self._answer)
            self._pid, self._since = 0, None


# --- Xid messages ---


class XidLog:
    """The Xid messages of the kernel's log: of this boot from its beginning, each once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1
        self._rest = b""

    def xids(self) -> List[Tuple[int, str, int, Optional[int]]]:
        """Number in the log, address of the GPU, Xid, detail. Lines of programs are not the kernel's, whatever they
        say."""
        events = []
        for line in self._lines():
            head, _, message = line.partition(";")
            match = XID.search(message[:400])
            fields = head.split(",")
            if match and len(fields) >= 3 and fields[0].isdigit() and fields[1].isdigit() and int(fields[0]) < 8:
                code = int(match.group(2))
                events.append((int(fields[1]), match.group(1).lower(), code, detail_of(code, match.group(3))))
        return events

    def _lines(self) -> Iterator[str]:
        try:
            if self._file < 0:
                self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        for _ in range(RECORDS):
            try:
                data = os.read(self._file, 8192)
            except BrokenPipeError:  # the log was faster
                continue
            except OSError:  # BlockingIOError: nothing more
                return
            if not data:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._rest = self._rest[-8192:]
            for line in lines:
                yield line.decode("utf-8", "replace")


def detail_of(code: int, message: str) -> Optional[int]:
    """Of Xid 154 the recovery action that the driver wants, of those about NVLink whether it is fatal; else None."""
    if code == 154:
        action = RECOVERY.search(message)
        return int(action.group(1), 16) if action else None
    link = LINK.search(message) if 144 <= code <= 150 else None
    return int(link.group(1) == "Fatal") if link else None


# --- HTTP ---


class SmallHttp:
    """One request a connection: between two reports a gateway would close it anyhow. TLS sessions are resumed."""

    def __init__(self) -> None:
        self._context: Any = None
        self._session: Any = None

    def ask(self, url: str, body: Optional[bytes] = None, token: str = "") -> AgentAnswer:
        """GET, or POST with a body. Raises OSError for whatever goes wrong on the way."""
        to = URL.fullmatch(url)
        if to is None or int(to.group(3) or 0) > 65535:
            raise OSError("the address is none of http or https")
        scheme, host, port, path = to.groups()
        where = f"{host}:{port}" if port else host
        head = [("POST" if body is not None else "GET") + f" {path or '/'} HTTP/1.0", f"Host: {where}"]
        if token:
            head.append(f"Authorization: Bearer {token}")
        if body is not None:
            head.append(f"Content-Length: {len(body)}")
        raw = ("\r\n".join(head) + "\r\n\r\n").encode("latin-1", "replace") + (body or b"")
        secure = scheme == "https"
        with self._connected(host.strip("[]"), int(port or (443 if secure else 80)), secure) as connection:
            connection.sendall(raw)
            answer = read_all(connection)
            if secure:
                self._session = connection.session
        top, _, content = answer.partition(b"\r\n\r\n")
        words = top.split(b" ", 2)
        if not answer.startswith(b"HTTP/1.") or len(words) < 2 or not words[1][:3].isdigit():
            raise OSError("what answers does not speak HTTP")
        return AgentAnswer(int(words[1][:3]), content)

    def _connected(self, host: str, port: int, secure: bool) -> Any:
        plain = socket.create_connection((host, port), PATIENCE)
        if not secure:
            return plain
        import ssl  # takes memory

        try:
            if self._context is None:
                self._context = tls_context(ssl)
            return self._context.wrap_socket(plain, server_hostname=host, session=self._session)
        except BaseException:
            self._session = None
            plain.close()
            raise


def tls_context(ssl: Any) -> Any:
    """As the standard library's default. Where the system has its authorities in a folder by their hashes, they are
    read from there when they are needed: all of them take 2 MiB."""
    folder = ssl.get_default_verify_paths().capath
    if "SSL_CERT_FILE" in os.environ or not any(name.endswith(".0") for name in names(folder or "")):
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(capath=folder)
    return context


def read_all(connection: Any) -> bytes:
    ends = time.monotonic() + PATIENCE
    parts, size = [], 0
    while size < ANSWER and time.monotonic() < ends:
        part = connection.recv(4096)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


# --- what the cloud asks for ---


class AgentAsk(namedtuple("AgentAsk", "server url code on")):
    """What the metadata of this server says: its id, the portal's address and a code, or that it is on."""

    __slots__ = ()


def asked(http: SmallHttp, source: str) -> AgentAsk:
    """Raises OSError when nobody tells."""
    if source.startswith("/"):
        with open(source, "rb") as file:
            body = file.read(ANSWER)
    else:
        answer = http.ask(source)
        if answer.status != 200:
            raise OSError(f"the metadata service answers {answer.status}")
        body = answer.body
    try:
        metadata = json.loads(body)
        server, word = metadata["uuid"], metadata.get("meta", {}).get(KEY, "")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise OSError("the metadata is not as OpenStack's") from None
    words = word.split() if isinstance(word, str) else []
    if len(words) == 2 and words[0].startswith(("https://", "http://")) and words[1].startswith("gye_"):
        return AgentAsk(str(server), words[0].rstrip("/"), words[1], False)
    return AgentAsk(str(server), "", "", words[:1] == ["on:"])


class AgentEnrolment(namedtuple("AgentEnrolment", "server url code token period batch")):
    """What was got for a code."""

    __slots__ = ()


def enrolment_of(server: Any, url: Any, code: Any, reply: Any) -> AgentEnrolment:
    """Raises ValueError."""
    try:
        token, period, batch = reply["token"], float(reply["period"]), int(reply["batch"])
    except (KeyError, TypeError, OverflowError):
        raise ValueError("what the portal says is not understood") from None
    if not isinstance(token, str) or not re.fullmatch(r"gya_[A-Za-z0-9_-]{20,200}", token):
        raise ValueError("what the portal says has no token")
    period = min(3600.0, max(1.0, period))
    return AgentEnrolment(str(server), str(url), str(code), token, period, min(KEPT, max(1, batch)))


class TokenMemo:
    """The token, in a file that only this user reads: it is got once."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "token.json")

    def read(self) -> Optional[AgentEnrolment]:
        try:
            with open(self._path, encoding="utf-8") as file:
                saved = json.loads(file.read(4096))
            return enrolment_of(saved["server"], saved["url"], saved["code"], saved)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, enrolment: AgentEnrolment) -> None:
        new = self._path + ".new"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(enrolment._asdict(), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._path)

    def forget(self) -> None:
        with contextlib.suppress(OSError):
            os.remove(self._path)


# --- the agent ---


class UnwelcomeError(Exception):
    """The token is not good any more."""


def say(text: str) -> None:
    print("gpuyard-agent: " + text, file=sys.stderr, flush=True)


def tenths() -> int:
    """Tenths of a second since the boot: rises whatever is done to the clock, and over a restart of the agent."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 10)


class Agent:
    def __init__(self) -> None:
        self._http, self._memo, self._log = SmallHttp(), TokenMemo(STATE), XidLog(KMSG)
        self._drivers = DriverProcess()
        self._boot = text_of("/proc/sys/kernel/random/boot_id").replace("-", "")[:16]
        self._last = 0
        self._cards: List[GuestCard] = []
        self._names: Dict[str, str] = {}
        """Address -> UUID of each GPU that was ever seen: messages about it come when it does not tell any more."""
        self._seen, self._driver = 0, ""
        self._samples: List[Tuple[int, List[Optional[Row]]]] = []
        self._xids: Dict[Tuple[str, int, Optional[int]], int] = {}
        """(address, Xid, detail) -> its last number in the log."""
        self._alarm: object = None
        self.urgent = False

    @property
    def waiting(self) -> int:
        """Samples that were not sent yet."""
        return len(self._samples)

    def sample(self) -> None:
        """Look once. Whatever goes wrong, or well again, makes the next report urgent. The log is read first: it says
        why, also when the driver does not answer any more."""
        new = self._log.xids()
        for number, address, code, detail in new:
            self._xids[address, code, detail] = number
        reading = self._drivers.seen()
        if reading is None:
            cards = [card._replace(row=None) for card in self._cards]
        else:
            cards, self._driver = reading
            self._names.update((card.address[-12:-2], card.uuid) for card in cards if card.address)
        if [card.uuid for card in cards] != [card.uuid for card in self._cards]:
            self._samples = []  # those are of other GPUs
        self._cards, self._seen = cards, sum(1 for _ in on_bus(SYS))
        self._last = max(self._last + 1, tenths())
        self._samples = [*self._samples[-KEPT + 1 :], (self._last, [card.row for card in cards])]
        alarm = (self._drivers.stuck, self._seen, [card.row and (*card.row[4:6], card.row[7]) for card in cards])
        self.urgent = self.urgent or bool(new) or alarm != self._alarm
        self._alarm = alarm

    def report(self) -> bytes:
        """All that is ever sent, besides the token."""
        report: Dict[str, object] = {
            "v": VERSION, "boot": self._boot, "driver": self._driver[:40], "seen": self._seen,
            "cards": [card.uuid for card in self._cards], "samples": self._samples,
        }  # fmt: skip
        if self._drivers.stuck:
            report["stuck"] = True
        if self._xids:
            xids = sorted((number, *key) for key, number in self._xids.items())[-XIDS_KEPT:]
            report["xids"] = [[number, self._names.get(at[:10], at), code, detail] for number, at, code, detail in xids]
        return json.dumps(report, separators=(",", ":")).encode()

    def send(self, enrolment: AgentEnrolment) -> bool:
        """Whether it was taken. Raises UnwelcomeError, and OSError when nobody answers."""
        answer = self._http.ask(enrolment.url + "/v1/agents/samples", self.report(), enrolment.token)
        if answer.status == 401:
            raise UnwelcomeError
        self.urgent = False
        taken = answer.status in (200, 204)
        if taken or answer.status in (400, 409, 413):  # sent again, they would be refused again
            self._samples = []
            if answer.status != 409:  # a server that has no GPU now may have one with its next report
                self._xids = {}
        if not taken:
            say(f"the portal answers {answer.status}: {answer.body[:200].decode('utf-8', 'replace')}")
        return taken

    def enrol(self) -> Optional[AgentEnrolment]:
        """What was got before for this server, or for a new code; None while it is not to be on. Raises OSError."""
        metadata, saved = asked(self._http, METADATA), self._memo.read()
        if saved is not None and saved.server != metadata.server:  # the disk is a copy of another server's
            self._memo.forget()
            saved = None
        if saved is not None and (metadata.on or metadata.code == saved.code):
            return saved
        if not metadata.code:
            return None
        body = json.dumps({"server": metadata.server, "code": metadata.code}).encode()
        answer = self._http.ask(metadata.url + "/v1/agents/enrol", body)
        if answer.status != 200:
            say(f"not enrolled: {answer.status} {answer.body[:200].decode('utf-8', 'replace')}")
            return None
        try:
            enrolment = enrolment_of(metadata.server, metadata.url, metadata.code, json.loads(answer.body))
        except (ValueError, RecursionError) as error:
            say(f"not enrolled: {error}")
            return None
        self._memo.write(enrolment)
        say(f"on: tells {enrolment.url} how the GPUs are, every {enrolment.period * enrolment.batch:.0f} s")
        return enrolment

    def forget(self) -> None:
        self._memo.forget()


def run(agent: Agent) -> None:
    """Until somebody ends it."""
    enrolment: Optional[AgentEnrolment] = None
    look = due = 0.0
    pause = ASK_AGAIN
    while True:
        began = time.monotonic()
        try:
            if began >= look:
                look = began + (ASK_AGAIN if enrolment is None else LOOK_AGAIN)
                enrolment = agent.enrol()
            if enrolment is not None:
                agent.sample()
                if began >= due and (agent.urgent or agent.waiting >= enrolment.batch):
                    due, pause = began + pause, min(2 * pause, LOOK_AGAIN)
                    if agent.send(enrolment):
                        due, pause = 0.0, ASK_AGAIN
        except UnwelcomeError:
            say("the token is not good any more: nothing is sent until there is another code")
            agent.forget()
            enrolment, look = None, began + ASK_AGAIN
        except OSError as error:
            say(f"nobody was reached: {error}")
        period = ASK_AGAIN if enrolment is None else enrolment.period
        # Not all of a cloud's servers at once.
        spread = 0.98 + 0.04 * os.urandom(1)[0] / 255
        time.sleep(max(0.0, began + period * spread - time.monotonic()))


if __name__ == "__main__":
    run(Agent())
