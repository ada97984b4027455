"""Runs a verb of gpuyard on many hosts at once, over the system's OpenSSH. Nothing is installed on them.

One ssh command per host: its standard input carries the zipapp, which Python keeps in memory only. What comes back is
one JSON object per line: ``start``, ``step`` as often as there is something to tell, and one ``result``. Anything else
that a host prints (its login files, the message of the day) is kept apart and shown when the host fails.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import shlex
import signal
import subprocess
import tempfile
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import IO, Any, Callable, Deque, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from gpuyard.host import bundle
from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.model.text import printable

BOOTSTRAP = """\
import os, sys
print('{"event": "start", "python": [%d, %d, %d]}' % sys.version_info[:3], flush=True)
if sys.version_info < (3, 9):
    sys.exit(1)
descriptor = os.memfd_create("gpuyard")
with open(descriptor, "wb", closefd=False) as file:
    file.write(sys.stdin.buffer.read())
sys.path.insert(0, "/proc/self/fd/%d" % descriptor)
from gpuyard.host.__main__ import main
sys.exit(main())
"""
"""What Python on the host runs first. It must be readable for a Python that is too old, so that this can say so."""
OLDEST_PYTHON = (3, 9)
LONGEST_LINE = 8 << 20
"""Bytes. An inventory with hundreds of functions is one line of less than 1 MiB."""
NOISE_LINES, NOISE_WIDTH = 20, 300
TICK_SECONDS = 0.02
SEVERITY = (0, 3, 2, 1)
"""Exit codes from good to bad: that a host is blocked is an answer, that it failed is none."""
HOST_NAME = re.compile(r"(?:\w[\w.@-]*@)?[\w:][\w.:%-]*", re.ASCII)
"""What ssh can be given: an alias of its configuration, a name, an address, each with ``user@``; never an option."""

WORDS = re.compile(r"[^\n\t]+")
BROKEN = re.compile("closed by remote host|not responding|Broken pipe|Connection reset|^client_loop|^ssh_dispatch")
"""What ssh says when a connection that was there is gone."""


class Ending(str, Enum):
    """How the conversation with a host ended."""

    DONE = "done"
    """The verb ran to its end; its exit code says how that was."""
    UNREACHABLE = "unreachable"
    """No connection, or it broke."""
    REFUSED = "refused"
    """The host does not let us in, or we do not trust its key, or sudo wants a password."""
    NO_PYTHON = "no python"
    """There is none on the host, or one that is too old."""
    FAILED = "failed"
    """The verb ended without a result."""
    TIMED_OUT = "timed out"
    NOT_TRIED = "not tried"
    """Another host failed before it was this one's turn."""


@dataclass(frozen=True)
class Progress:
    """What a host does now."""

    host: str
    text: str
    done: int = 0
    of: int = 0
    """Steps; 0 when it is not known how many there are."""


@dataclass(frozen=True)
class Outcome:
    """How it went on one host. Strings hold no control characters but newlines and tabs, whatever the host sent."""

    host: str
    ending: Ending
    exit: int
    """The verb's own exit code; 1 when there is none. Of one that was not tried, that of the host that failed."""
    reason: str = ""
    """Why there is no result, or what the verb says went wrong."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """The verb's result; its keys are the verb's. Empty when there is none."""
    noise: Tuple[str, ...] = ()
    """The last lines that the host printed besides."""
    seconds: float = 0.0


Event = Union[Progress, Outcome]


@dataclass(frozen=True)
class FleetOptions:
    """How hosts are reached."""

    ssh: Tuple[str, ...] = ("ssh",)
    """The program, and options that go before ours: ``-F FILE``, ``-o ProxyJump=gate``."""
    python: str = "python3"
    """Name or path of Python on the hosts."""
    sudo: bool = False
    """Become root with ``sudo -n``."""
    at_once: int = 32
    connect_seconds: int = 10
    seconds: float = 600
    """The most that one host may take, connecting included. Its connection is cut then; what it does may go on."""
    canary: str = ""
    """This host alone first, and no other one when it fails."""
    stop: bool = False
    """After one fails no other one begins; those at work go on to their end."""


def run(
    hosts: Iterable[str],
    verb: Sequence[str],
    options: FleetOptions = FleetOptions(),
    on_event: Callable[[Event], None] = lambda event: None,
    zipapp: Optional[bytes] = None,
    own: Optional[Mapping[str, Sequence[str]]] = None,
) -> Dict[str, Outcome]:
    """Run a verb with its arguments on all hosts; the outcomes in the order of the hosts. `own`: host -> further ones.

    `on_event` is called in the calling thread: each host's progress, then its outcome. A host that fails is an outcome;
    raises UsageError for a host name that ssh must not see, GpuyardError when there is no ssh.
    """
    names = list(dict.fromkeys(hosts))
    for name in names:
        if not HOST_NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no host that ssh can be given: write HOST, USER@HOST or an alias")
    if options.canary and options.canary not in names:
        raise UsageError(f"{options.canary} is not one of the hosts: {', '.join(names)}")
    outcomes: Dict[str, Outcome] = {}
    waiting = deque(sorted(names, key=lambda name: name != options.canary))
    running: List[_Connection] = []
    with tempfile.NamedTemporaryFile(prefix="gpuyard-") as payload, selectors.DefaultSelector() as selector:
        payload.write(BOOTSTRAP.encode() + (bundle.build() if zipapp is None else zipapp))
        payload.flush()
        try:
            while waiting or running:
                if failed := stopped_by(outcomes.values(), options):
                    for host in waiting:
                        reason = f"stopped after {failed.host} failed"
                        outcomes[host] = Outcome(host, Ending.NOT_TRIED, failed.exit, reason)
                        on_event(outcomes[host])
                    waiting.clear()
                while waiting and len(running) < _at_once(options, outcomes):
                    host = waiting.popleft()
                    words = [*verb, *(own or {}).get(host, ())]
                    running.append(_Connection(host, command(host, words, options), payload.name, selector))
                    on_event(Progress(host, "connecting"))
                for key, _ in selector.select(TICK_SECONDS):
                    for progress in key.data():
                        on_event(progress)
                for connection in list(running):
                    outcome = connection.outcome(options)
                    if outcome is not None:
                        running.remove(connection)
                        outcomes[outcome.host] = outcome
                        on_event(outcome)
        finally:
            for connection in running:
                connection.end()
    return {name: outcomes[name] for name in names}


def stopped_by(outcomes: Iterable[Outcome], options: FleetOptions) -> Optional[Outcome]:
    """The host after which no other one begins; None while all may."""
    bad = (outcome for outcome in outcomes if outcome.exit and (options.stop or outcome.host == options.canary))
    return next(bad, None)


def _at_once(options: FleetOptions, outcomes: Mapping[str, Outcome]) -> int:
    return 1 if options.canary and options.canary not in outcomes else options.at_once


def worst(outcomes: Mapping[str, Outcome]) -> int:
    """The exit code for all hosts together: an error is worse than a usage error, and that than a blocked host."""
    return max((outcome.exit for outcome in outcomes.values()), key=_severity, default=0)


def _severity(code: int) -> int:
    return SEVERITY.index(code) if code in SEVERITY else len(SEVERITY)


def command(host: str, verb: Sequence[str], options: FleetOptions) -> List[str]:
    """The ssh command for a host. ssh hands one text to the login shell there, so the words in it are quoted."""
    start = f"import sys; exec(sys.stdin.buffer.read({len(BOOTSTRAP)}))"
    # -I: neither PYTHON* nor modules in the home folder; -B: no __pycache__ of the host's own modules.
    remote = [*(["sudo", "-n"] if options.sudo else []), options.python, "-IB", "-c", start, *verb]
    ours = {
        "BatchMode": "yes",
        "ConnectTimeout": str(options.connect_seconds),
        "ServerAliveInterval": "15",
        "LogLevel": "ERROR",  # reasons, but no banners
        "ClearAllForwardings": "yes",
        "RemoteCommand": "none",
        "RequestTTY": "no",
    }
    settings = [word for name, value in ours.items() for word in ("-o", f"{name}={value}")]
    return [*options.ssh, *settings, "--", host, shlex.join(remote)]


class _Connection:
    """One ssh process and what has come from it."""

    def __init__(self, host: str, words: List[str], payload: str, selector: selectors.BaseSelector) -> None:
        self.host, self.began = host, time.monotonic()
        self.python: Optional[Tuple[int, ...]] = None
        self.last = ""
        self.result: Optional[Dict[str, Any]] = None
        self.noise: Deque[str] = deque(maxlen=NOISE_LINES)
        self.said: Deque[str] = deque(maxlen=NOISE_LINES)
        self._selector = selector
        self._output, self._errors = _Lines(), _Lines()
        try:
            with open(payload, "rb") as stdin:  # a file, so that a host that does not read it blocks nobody
                self._process = subprocess.Popen(
                    words, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
                )
        except OSError as error:
            raise GpuyardError(f"cannot start {words[0]}: {error.strerror}; the OpenSSH client is needed") from None
        for stream, read in ((self._process.stdout, self._hear), (self._process.stderr, self._overhear)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, read)

    def _hear(self) -> List[Progress]:
        """Read standard output as far as there is some."""
        data = self._read(self._process.stdout)
        return [progress for line in self._output.feed(data) for progress in self._event(line)]

    def _overhear(self) -> List[Progress]:
        """Read standard error, of ssh and of the host, as far as there is some."""
        self.said.extend(text for text in map(_printable, self._errors.feed(self._read(self._process.stderr))) if text)
        return []

    def _read(self, stream: Optional[IO[bytes]]) -> Optional[bytes]:
        """What is there; None at the end."""
        if stream is None or stream.closed:
            return None
        try:
            data = os.read(stream.fileno(), 1 << 16)
        except BlockingIOError:
            return b""
        if not data:
            self._selector.unregister(stream)
            stream.close()
        return data or None

    def _event(self, line: bytes) -> List[Progress]:
        event = parse_event(line)
        if event is None:
            if text := _printable(line):
                self.noise.append(text)
        elif event["event"] == "start":
            self.python = tuple(event["python"])
            return [Progress(self.host, "connected")]
        elif event["event"] == "result":
            self.result = event
        else:
            self.last = event["text"]
            return [Progress(self.host, event["text"], event["done"], event["of"])]
        return []

    def outcome(self, options: FleetOptions) -> Optional[Outcome]:
        """None while it runs and has time left."""
        status, seconds = self._process.poll(), time.monotonic() - self.began
        if status is None and seconds < options.seconds:
            return None
        self.end()
        if self.result is not None:
            code, reason = self.result["exit"], str(self.result.get("error", ""))
            return Outcome(self.host, Ending.DONE, code, reason, self.result, (*self.noise, *self.said), seconds)
        if status is None:
            at = f"; it was at: {self.last}" if self.last else "" if self.python else "; no word came from it"
            ending, reason = Ending.TIMED_OUT, f"no result after {options.seconds:g} s{at}"
        else:
            ending, reason = explain(status, self.python, [*self.said], [*self.noise], options)
        return Outcome(self.host, ending, 1, reason, {}, (*self.noise, *self.said), seconds)

    def end(self) -> None:
        """End ssh and its helpers if they still run, and take in what is left to read."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for stream, read in ((self._process.stdout, self._hear), (self._process.stderr, self._overhear)):
            # Until nothing is there, not until the end: a master connection of the user's may keep the stream open.
            while stream is not None and not stream.closed and _readable(stream):
                read()
            if stream is not None and not stream.closed:
                self._selector.unregister(stream)
                stream.close()


def _readable(stream: IO[bytes]) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return bool(selector.select(0))


class _Lines:
    """Cuts a stream into lines; of a line without end only the first part is kept."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: Optional[bytes]) -> List[bytes]:
        """The lines that are complete now; with None, the end, also the last one."""
        if data is None:
            lines, self._rest = [self._rest], b""
            return lines
        if len(self._rest) == LONGEST_LINE and b"\n" not in data:
            return []
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:LONGEST_LINE]
        return lines


def parse_event(line: bytes) -> Optional[Dict[str, Any]]:
    """An event of ours, with what it must have and without control characters; None for anything else."""
    try:
        event = _clean(json.loads(line))
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict):
        return None
    kind = event.get("event")
    if kind == "start" and _numbers(event.get("python")):
        return event
    if kind == "step" and isinstance(event.get("text"), str) and _numbers([event.get("done"), event.get("of")]):
        return {**event, "text": " ".join(event["text"].split())}
    if kind == "result" and _numbers([event.get("exit")]) and 0 <= event["exit"] < 256:
        return event
    return None


def _numbers(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _clean(value: Any) -> Any:
    """Without what could steer a terminal."""
    if isinstance(value, str):
        return WORDS.sub(lambda words: printable(words[0]), value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


def _printable(line: bytes) -> str:
    text: str = _clean(line.decode("utf-8", "replace").strip())
    return " ".join(text.split())[:NOISE_WIDTH]


def explain(
    status: int, python: Optional[Tuple[int, ...]], errors: Sequence[str], noise: Sequence[str], options: FleetOptions
) -> Tuple[Ending, str]:
    """Why a host gave no result: from ssh's exit status, the host's Python, and the last lines of both outputs."""
    last = errors[-1] if errors else noise[-1] if noise else f"ended with {status}"
    if status < 0:
        return Ending.FAILED, f"ssh was ended by signal {-status}"
    if python is not None and python < OLDEST_PYTHON:
        version = ".".join(map(str, python))
        return Ending.NO_PYTHON, f"{options.python} is {version} there, 3.9 or newer is needed: name another one"
    if status == 255 and python is None:
        return _no_connection(errors, last)
    if status == 255 and any(map(BROKEN.search, errors)):
        return Ending.UNREACHABLE, f"the connection broke: {last}"
    if status == 255:  # ssh says no more when the program on the host did not end by itself
        return Ending.FAILED, f"a signal ended it there: {last}"
    if python is not None:
        return Ending.FAILED, last
    if options.sudo and any(text.startswith("sudo:") and "command not found" not in text for text in errors):
        return Ending.REFUSED, f"{last}; log in as root, or allow this user sudo without a password"
    if status in (126, 127) or "command not found" in last:
        return Ending.NO_PYTHON, f"{last}; install Python 3.9 or newer there, or name the one that it has"
    return Ending.FAILED, last


def _no_connection(errors: Sequence[str], last: str) -> Tuple[Ending, str]:
    text = "\n".join(errors)
    if "Host key verification failed" in text:
        return Ending.REFUSED, "its host key is unknown or has changed: connect once with ssh and look at it"
    if "Permission denied" in text or "Too many authentication failures" in text:
        return Ending.REFUSED, f"{last}; a key that needs no password must be in the agent or the configuration"
    return Ending.UNREACHABLE, last
