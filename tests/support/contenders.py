"""Many who want the same GPU at the same moment, in threads of one process or of several.

Everybody has a store and a ledger of their own process, and a task: a call of the ledger, or of the store itself. All
begin at one moment; each tells whether it has won, or why it has not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import uuid4

from gpuyard.bookings.ledger.ledger import BookingSettings, Ledger
from gpuyard.bookings.store import OverlapError, Store
from gpuyard.model.booking import Ask, Booking, BookingKind, BookingState, Person, Rules
from gpuyard.model.errors import BlockedError

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
POOL = "t4"
WON = "won"


@dataclass(frozen=True)
class Task:
    """One call, of the person with a number."""

    what: str
    """``store``, ``create``, ``override``, ``edit``, ``approve``, ``accept``, ``lease``, ``idle``."""
    number: int
    booking: str = ""
    """The one that is changed."""
    first: float = 24
    last: float = 25
    """What is wanted, in hours from now."""
    key: str = ""


def person(number: int, *, admin: bool = False) -> Person:
    roles = frozenset({"member", "admin"} if admin else {"member"})
    return Person(f"u{number}", f"user-{number}", "p", "project", roles)


def ask(first: float, last: float) -> Ask:
    return Ask(POOL, NOW + first * HOUR, NOW + last * HOUR)


def ledger_of(store: Store, *, approval: bool = False) -> Ledger:
    rules = Rules(most_active=1000, ahead=timedelta(days=400), approval=approval)
    return Ledger(store, BookingSettings([POOL], lambda pool, project: rules, "UTC"), lambda: NOW, lambda: uuid4().hex)


def one_gpu(store: Store) -> None:
    store.sync_lanes([(POOL, "gpu-1", ("0000:01:00.0",))])


def contend(store: Store, tasks: Sequence[Task]) -> list[str]:
    """In threads of this process."""
    ledger = ledger_of(store)
    calls = [partial(_do, store, ledger, task) for task in tasks]
    return _at_once(calls, threading.Barrier(len(calls)).wait)


class Processes:
    """Several processes that contend again and again: they are started once."""

    def __init__(self, number: int) -> None:
        command = [sys.executable, "-m", __name__]
        self._running = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
            for _ in range(number)
        ]

    def contend(self, url: str, tasks: Sequence[Task]) -> list[str]:
        """A thread for each task, dealt out to the processes. All are ready before any begins."""
        for place, process in enumerate(self._running):
            mine = [asdict(task) for task in tasks[place :: len(self._running)]]
            _say(process, json.dumps([url, mine]))
        assert [_hear(running) for running in self._running] == ["ready"] * len(self._running)
        for process in self._running:
            _say(process, "go")
        return [outcome for running in self._running for outcome in json.loads(_hear(running))]

    def close(self) -> None:
        for process in self._running:
            process.communicate()


def _say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def _hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def _at_once(calls: Sequence[Callable[[], str]], begin: Callable[[], object]) -> list[str]:
    outcomes = [""] * len(calls)

    def run(place: int) -> None:
        begin()
        outcomes[place] = calls[place]()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def _do(store: Store, ledger: Ledger, task: Task) -> str:
    try:
        made = CALLS[task.what](store, ledger, task)
    except (BlockedError, OverlapError) as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"unexpected {type(error).__name__}: {error}"
    return f"{WON} {made.id}"


def _store(store: Store, ledger: Ledger, task: Task) -> Booking:
    """Writes without a look at what is taken: only the database stands in the way."""
    who = person(task.number)
    booking = Booking(
        uuid4().hex, BookingKind.BOOKING, ask(task.first, task.last), BookingState.CONFIRMED, who.user_id, who.user,
        who.project_id, who.project, NOW, NOW, lanes=(1,),
    )  # fmt: skip
    with store.change(POOL) as change:
        return change.write(booking)[0]


def _create(store: Store, ledger: Ledger, task: Task) -> Booking:
    return ledger.create(ask(task.first, task.last), person(task.number), key=task.key)[0]


def _override(store: Store, ledger: Ledger, task: Task) -> Booking:
    return ledger.create(ask(task.first, task.last), person(task.number, admin=True), override=True)[0]


def _edit(store: Store, ledger: Ledger, task: Task) -> Booking:
    old = ledger.get(task.booking)
    target = ask(task.first, task.last)
    new = replace(old.ask, start=target.start, end=target.end)
    return ledger.edit(task.booking, new, person(task.number))


def _approve(store: Store, ledger: Ledger, task: Task) -> Booking:
    return ledger.approve(task.booking, person(task.number, admin=True))


def _accept(store: Store, ledger: Ledger, task: Task) -> Booking:
    return ledger.accept(task.booking, person(task.number, admin=True))


def _lease(store: Store, ledger: Ledger, task: Task) -> Booking:
    end, server = NOW + task.last * HOUR, f"runner-{task.number}"
    return ledger.leases.take(POOL, 1, False, end, server, "ci", "ci", "", yields=task.what == "idle")


CALLS: dict[str, Callable[[Store, Ledger, Task], Booking]] = {
    "store": _store,
    "create": _create,
    "override": _override,
    "edit": _edit,
    "approve": _approve,
    "accept": _accept,
    "lease": _lease,
    "idle": _lease,
}


def main() -> None:
    """One process of several: a line says what to do, the next one when."""
    for line in sys.stdin:
        url, tasks = json.loads(line)
        with closing(Store.open(url)) as store:
            ledger = ledger_of(store)
            calls = [partial(_do, store, ledger, Task(**task)) for task in tasks]
            go = threading.Event()
            print("ready", flush=True)
            threading.Thread(target=_wait, args=(go,)).start()
            print(json.dumps(_at_once(calls, go.wait)), flush=True)


def _wait(go: threading.Event) -> None:
    sys.stdin.readline()
    go.set()


if __name__ == "__main__":
    main()
