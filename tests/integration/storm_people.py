"""People who book GPUs while a storm of jobs rages in the same pools: each books, starts a server when its time has
come, and gives everything back. What they ask they ask again as long as nobody answers, since the portal is killed
meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from gpuyard.client.client import Client
from gpuyard.client.errors import ApiRefusedError, PortalError
from gpuyard.client.portal import PortalSession, PortalUnreachableError
from gpuyard.model.booking import Booking, BookingState
from gpuyard.openstack.api import CloudError
from gpuyard_lab.exercise import Exercise

FLAVORS = {"v100": "gpu_tiny", "t4": "t4.15cores90GB"}
"""Pool -> what people start there."""
LONG = timedelta(minutes=15)
PATIENCE = 300.0
"""Seconds until somebody takes a booking for lost."""
TRIES = 5
"""Most times that somebody asks Nova for a server on a booking: whoever asks in a bad moment asks again."""
AGAIN = 2.0


@dataclass
class StormPeople:
    """Everybody who books in one storm: what they were told, and what came of it."""

    door: PortalSession
    exercise: Exercise
    far: timedelta
    """Who could have a GPU only later than this cancels, and does not wait."""
    used: list[str] = field(default_factory=list)
    """Bookings that had their server."""
    cancelled: list[str] = field(default_factory=list)
    turned_down: list[str] = field(default_factory=list)
    """Reasons given to those who got no booking."""
    wronged: list[str] = field(default_factory=list)
    """What must not be."""
    finished: float = 0.0
    """When the last one was done, by `monotonic`."""
    asked: int = 0
    _asking: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4, thread_name_prefix="people"))
    _wishes: list[Future[None]] = field(default_factory=list)

    def book(self) -> None:
        """One more person wants a GPU, from now on."""
        pool = [*FLAVORS][self.asked % len(FLAVORS)]
        self.asked += 1
        self._wishes.append(self._asking.submit(self._live, pool))

    def wait(self) -> None:
        """Until everybody is done. Raises what nobody has thought of."""
        for wish in self._wishes:
            wish.result()

    def close(self) -> None:
        self._asking.shutdown()
        self.exercise.clear()

    def _live(self, pool: str) -> None:
        try:
            made = self._made(pool)
            if made is not None:
                self._use(made, FLAVORS[pool])
        finally:
            self.finished = monotonic()

    def _made(self, pool: str) -> Mapping[str, Any] | None:
        """The booking: of any time that is offered where there is no GPU now."""
        now = datetime.now(UTC)
        wish = {"pool": pool, "gpus": 1, "start": now.isoformat(), "end": (now + LONG).isoformat()}
        try:
            return self._create(wish)
        except ApiRefusedError as refused:
            if not refused.alternatives:
                self.turned_down.append(f"{pool}: {'; '.join(refused.reasons)}")
                return None
            ask = refused.alternatives[0]["ask"]
            other = {**wish, "start": ask["start"], "end": ask["end"]}
        try:
            return self._create(other)
        except ApiRefusedError as refused:  # a runner was faster
            self.turned_down.append(f"{pool}: {'; '.join(refused.reasons)}")
            return None

    def _create(self, wish: Mapping[str, Any]) -> Mapping[str, Any]:
        """With one key, so that it is one booking however often it is asked for."""
        key = str(uuid4())
        client = Client(self.door, new_key=lambda: key)
        made: Mapping[str, Any] = self._answered(lambda: client.create(wish))[0]
        return made

    def _use(self, made: Mapping[str, Any], flavor: str) -> None:
        id, client = made["id"], Client(self.door)
        if datetime.fromisoformat(made["start"]) - datetime.now(UTC) > self.far:
            self._over(id, "cancel", "cancelled")
            self.cancelled.append(id)
            return
        end = monotonic() + PATIENCE + self.far.total_seconds()
        row, _ = self._answered(lambda: client.booking(id))
        while not row["usable_since"]:
            if monotonic() > end or row["state"] not in ("confirmed", "active"):
                self.wronged.append(f"booking {id} is {row['state']}, and its owner was not let in: {row}")
                return
            sleep(AGAIN)
            row, _ = self._answered(lambda: client.booking(id))
        if self._boots(id, flavor):
            self.used.append(id)
        self._over(id, "end", "ended")

    def _boots(self, id: str, flavor: str) -> bool:
        """Whether its owner gets a server on it; that goes again."""
        faults = []
        for _ in range(TRIES):
            try:
                boot = self.exercise.boot(flavor)
            except CloudError as error:
                faults.append(str(error))
                sleep(AGAIN)
                continue
            self.exercise.delete([boot.server_id])
            if boot.status == "ACTIVE":
                return True
            faults.append(boot.fault)
            sleep(AGAIN)
        self.wronged.append(f"the owner of booking {id} was kept out: {faults}")
        return False

    def _over(self, id: str, verb: str, state: str) -> None:
        """It is done however often it is asked for: a kill may have eaten the answer."""
        client = Client(self.door)

        def act() -> object:
            try:
                return client.act(id, verb)
            except ApiRefusedError:
                if client.booking(id)[0]["state"] == state:
                    return None
                raise

        self._answered(act)

    def _answered(self, ask: Callable[[], Any]) -> Any:
        """The answer of a portal that may be killed and come again. Raises ApiRefusedError for a no."""
        end = monotonic() + PATIENCE
        while True:
            try:
                return ask()
            except (PortalUnreachableError, PortalError):
                if monotonic() > end:
                    raise
                sleep(AGAIN)

    def lost_or_doubled(self, bookings: Sequence[Booking]) -> list[str]:
        """Where the ledger has another truth than people were told. `bookings`: all bookings that it has."""
        expected_states = dict.fromkeys(self.used, BookingState.ENDED) | dict.fromkeys(
            self.cancelled, BookingState.CANCELLED
        )
        bookings_by_id = {booking.id: booking for booking in bookings}
        wrong = [f"booking {id} is lost" for id in expected_states if id not in bookings_by_id]
        for booking in bookings:
            if booking.id not in expected_states:
                wrong.append(f"nobody was told of booking {booking.id}, or it was of no use: {booking}")
            elif booking.state is not expected_states[booking.id]:
                wrong.append(f"booking {booking.id} should be {expected_states[booking.id].value}: {booking}")
        return wrong

    def told(self) -> str:
        """What happened."""
        return (
            f"{self.asked} people wanted a GPU: {len(self.used)} had their server, {len(self.cancelled)} cancelled, "
            f"{len(self.turned_down)} got none: {self.turned_down}"
        )
