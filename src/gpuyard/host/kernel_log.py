"""Reads the kernel's log from /dev/kmsg: one record at a time, each with its time since the boot.

Only the kernel's own records count: programs may write there too, and the kernel marks their lines.
"""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from typing import Callable, Deque, Iterator, List, Mapping, Optional, Tuple

from gpuyard.model.host_report import LogLine
from gpuyard.model.text import printable

KMSG = "dev/kmsg"
NAMED = re.compile(r"(?<![\w:.])((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?!\w|:\w)", re.ASCII)
"""An address; an IOMMU leaves the domain out: ``Request device [27:00.0] fault addr``."""
HEAD = re.compile(rb"([0-9]{1,9}),([0-9]{1,20}),([0-9]{1,18}),[^;\n]{0,100};", re.ASCII)
RECORD = 8192
"""Bytes; the kernel's longest with all its notes are shorter, and it refuses a read that is too small for one."""
MOST_RECORDS = 100_000
"""Read in one go; a log of the usual size has some thousands."""
MOST_LINES = 100
LONGEST = 300


class KernelLog:
    """The log from its beginning on, or what is left of that. Each record is read once."""

    def __init__(self, read: Callable[[], Optional[bytes]]) -> None:
        """`read`: the next record; None when there is none (yet)."""
        self._read = read

    def lines(self, names: Mapping[str, str]) -> Tuple[LogLine, ...]:
        """What has come since the last call and names a device, the newest of it. `names`: address -> address that it
        counts for: a port's own lines are about what is below it."""
        lines: Deque[LogLine] = deque(maxlen=MOST_LINES)
        for _ in range(MOST_RECORDS):
            record = self._read()
            if record is None:
                break
            lines.extend(said_of(record, names))
        return tuple(lines)


def said_of(record: bytes, names: Mapping[str, str]) -> List[LogLine]:
    """A line for each device that a record of the kernel names."""
    head = HEAD.match(record)
    if head is None or int(head[1]) >> 3:  # a facility: a program's line
        return []
    text = printable(record[head.end() :].split(b"\n", 1)[0].decode("utf-8", "replace"))
    named = {names[address]: None for address in _addresses(text) if address in names}
    return [LogLine(int(head[3]) / 1e6, address, text[:LONGEST]) for address in named]


def _addresses(text: str) -> Iterator[str]:
    for match in NAMED.finditer(text):
        address = match[1]
        yield address if address.count(":") == 2 else f"0000:{address}"


def open_log(path: str = f"/{KMSG}") -> KernelLog:
    """The running kernel's; an empty one where it may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return KernelLog(lambda: None)
    return KernelLog(lambda: _next(descriptor))


def _next(descriptor: int) -> Optional[bytes]:
    try:
        return os.read(descriptor, RECORD) or None
    except OSError as error:
        # Overwritten before it was read: the next read is of the oldest that is left. EAGAIN: there is no more.
        return b"" if error.errno == errno.EPIPE else None
