"""The loop of agents: offers servers a code to enrol with, ends tokens, repeats alarms, and writes what was heard.

A server's metadata says one of: an address and a one-time code, for its guest to enrol with; ``on: ...``, once
something was heard of it; ``off``, which its owner has written there, and which is obeyed. The metadata is read with
every snapshot of the cloud, and corrected: so a kill between any two steps costs one period. Alarms are repeated first,
because a suspect GPU would become fine without them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Protocol

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.database.errors import StoreError
from gpuyard.health.controllers.agent_metadata import AgentWords
from gpuyard.health.controllers.agent_service import ENROL, SILENT, AgentService
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.life import with_card
from gpuyard.health.records import UUIDS, HealthEvent, HealthToken
from gpuyard.health.store.guests import GuestStore
from gpuyard.health.tokens import digest_of, new_token
from gpuyard.model.errors import UsageError
from gpuyard.model.gpu import Gpu
from gpuyard.model.signals import Source, time_words
from gpuyard.model.world import Server, Snapshot
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.errors import CloudError
from gpuyard.runtime.control_loops import Loop
from gpuyard.runtime.leader_roles import BOOKINGS

LOG = logging.getLogger(__name__)
PERIOD = 10.0
"""Seconds between looks."""
OFF = "off"
ON = "on:"
CODE_LASTS = timedelta(days=1)
RENEW = timedelta(hours=1)
"""A code that is good for less than this is replaced."""
GONE = timedelta(minutes=10)
"""A server may be without GPUs for so long, as in a resize, before its token ends."""
LATER = timedelta(minutes=5)
"""Until a word is tried again that could not be written."""
WORDS_AT_ONCE = 50
"""Servers whose metadata one run writes, at most."""
FAILURES = 3
"""After so many that Nova did not write, one look leaves the others to the next: each may have taken its time."""
ALARMS = timedelta(minutes=3)
"""Between two observations of an alarm that stands, at most: below the shortest time for which a GPU is suspect."""
SILENT_EVERY = timedelta(minutes=1)
FLUSH, PRUNE, CARDS, TOKENS = timedelta(minutes=5), timedelta(hours=1), timedelta(minutes=1), timedelta(minutes=1)


class WordsOnServers(Protocol):
    """Writes metadata of servers: health/controllers/agent_metadata.py."""

    def put(self, server_id: str, text: str) -> bool: ...

    def remove(self, server_id: str) -> bool: ...


class AgentController:
    """The loop of one site; one run at a time."""

    def __init__(
        self,
        service: AgentService,
        words: WordsOnServers,
        portal: str,
        now: Callable[[], datetime],
        may: Callable[[], bool] = lambda: True,
    ) -> None:
        """`portal`: its address, for guests; `may`: whether this process is the one that acts."""
        self.service, self._words, self._now, self._may = service, words, now, may
        self._portal = portal.rstrip("/")
        self._on = f"{ON} {self._portal}/v1/agents says what is sent; write {OFF} here to end it"
        self._missing: dict[str, datetime] = {}
        """Servers with a token and without GPUs, since when."""
        self._later: dict[str, datetime] = {}
        self._active: dict[str, datetime] = {}
        """Servers with a token that were ACTIVE at every look since then."""
        self._silent: set[str] = set()
        """Those of them whose silence was observed."""
        self._done: dict[str, datetime] = {}

    def run(self) -> float | None:
        """Repeat alarms, end and offer tokens, observe silent agents, and write what was heard. Alarms come first: a
        GPU passes from suspect to fine where they are not repeated. Raises StoreError."""
        snapshot = self.service.seen()
        acts = snapshot is not None and self._may()
        if acts:
            self._repeat_alarms()
        if self._is_time("tokens", TOKENS):
            self.service.read_tokens()
        if snapshot is not None and acts:
            has = self.service.has().keys()
            self._end_what_is_gone(snapshot, has)
            self._write_words(snapshot, has)
            if self._is_time("silent", SILENT_EVERY):
                self._observe_silent(snapshot, has)
            if self._is_time("cards", CARDS):
                self._name_cards()
        if self._is_time("flush", FLUSH):
            self.service.flush()
        if self._is_time("prune", PRUNE):
            self.service.guests.prune(self._now())
        return None

    def close(self) -> None:
        """Write what was heard since the last time."""
        try:
            self.service.flush()
        except StoreError as error:
            LOG.warning("what agents have said in the last minutes is lost: %s", error)

    def _is_time(self, what: str, every: timedelta) -> bool:
        now = self._now()
        if not timedelta() <= now - self._done.get(what, now - every) < every:
            self._done[what] = now
            return True
        return False

    def _repeat_alarms(self) -> None:
        """Those that could not be written down are repeated with the next look."""
        if not self._is_time("alarms", min(ALARMS, self.service.suspect / 3)):
            return
        try:
            self.service.repeat_alarms()
        except StoreError:
            del self._done["alarms"]
            raise

    def _is_wanted(self, server: Server) -> bool:
        return server.project in self.service.rules.projects or server.project_id in self.service.rules.projects

    def _observe_silent(self, snapshot: Snapshot, has: Collection[str]) -> None:
        """Observe each agent once that was heard and says nothing any more while its server runs. It may have been
        stopped, or hang with the GPU: from now on nothing is known from that guest."""
        now, on = self._now(), self.service.servers() & set(has)
        active = {
            id for id in on if (server := snapshot.servers.get(id)) and server.status == "ACTIVE" and not server.task
        }
        self._active = {id: min(self._active.get(id, now), now) for id in active}
        quiet = [id for id, since in self._active.items() if now - since >= self.service.silence]
        heard = self.service.last_heard(quiet)
        silent = {id for id in quiet if id in heard and now - heard[id] >= self.service.silence}
        for id in sorted(silent - self._silent):
            self.service.observe_silence(id, heard[id])
        self._silent = silent

    def _end_what_is_gone(self, snapshot: Snapshot, has: Collection[str]) -> None:
        now = self._now()
        for server in self.service.servers():
            cloud_server = snapshot.servers.get(server)
            if cloud_server is not None and (not self._is_wanted(cloud_server) or cloud_server.agent == OFF):
                LOG.info(
                    "server %s: its agent is heard no more: %s",
                    server,
                    "off" if cloud_server.agent == OFF else "project",
                )
                self._end(server)
            elif (
                cloud_server is not None and server in has
            ) or snapshot.silent_hosts:  # it may be in a cell that is silent
                self._missing.pop(server, None)
            elif now - self._missing.setdefault(server, now) >= GONE:
                LOG.info("server %s is gone, and so is the token of its agent", server)
                self._end(server)
        for times_by_server in (self._missing, self._later):
            for server in times_by_server.keys() - snapshot.servers.keys() - self.service.servers():
                del times_by_server[server]

    def _end(self, server: str) -> None:
        self.service.end(server)
        self.service.store.end_tokens(ENROL, server)
        self.service.forget([server])
        self._missing.pop(server, None)

    def _write_words(self, snapshot: Snapshot, has: Collection[str]) -> None:
        """What cannot be written for one server is tried again later, and is no matter of the others."""
        failures = 0
        for server, word in islice(self._words_due(snapshot, has), WORDS_AT_ONCE):
            try:
                written = self._words.put(server, word) if word else self._words.remove(server)
            except CloudError as error:
                LOG.warning("server %s: its metadata is tried again in %s: %s", server, time_words(LATER), error)
                written, failures = False, failures + 1
            if not written:
                self._later[server] = self._now() + LATER
            if failures >= FAILURES:
                return

    def _words_due(self, snapshot: Snapshot, has: Collection[str]) -> Iterator[tuple[str, str]]:
        """Servers, each with what is to be written; nothing: what stands there is to be removed."""
        now, on = self._now(), self.service.servers()
        codes = {token.subject: token for token in self.service.store.tokens(ENROL)}
        for server in sorted(has):
            cloud_server = snapshot.servers.get(server)
            if cloud_server is None or now < self._later.get(server, now):
                continue
            if not self._is_wanted(cloud_server):
                if cloud_server.agent.startswith((ON, self._portal + " ")):
                    yield server, ""
            elif (
                cloud_server.status == "ACTIVE"
                and cloud_server.agent != OFF
                and (word := self._word(cloud_server, server in on, codes.get(server)))
            ):
                yield server, word

    def _word(self, server: Server, on: bool, code: HealthToken | None) -> str:
        """What is to be written; empty when that stands there already."""
        now = self._now()
        guest = self.service.guest(server.id)
        if on and guest is not None and guest.heard is not None and now - guest.heard < SILENT:
            return "" if server.agent == self._on else self._on
        if code is not None and self._stands(server, code, now):
            return ""
        text, digest = new_token(ENROL)
        self.service.store.end_tokens(ENROL, server.id)
        self.service.store.add_token(HealthToken(digest, ENROL, server.id, now, now + CODE_LASTS))
        return f"{self._portal} {text}"

    def _stands(self, server: Server, code: HealthToken, now: datetime) -> bool:
        """Return whether this code stands there, and is good: or was used a moment ago."""
        url, _, text = server.agent.partition(" ")
        if url != self._portal or digest_of(text) != code.digest or code.expires is None or now > code.expires - RENEW:
            return False
        return code.spent is None or now - code.spent < SILENT  # else the token that it gave was lost

    def _name_cards(self) -> None:
        """GPUs get the cards that guests see in them."""
        at = {place: card for card, place in self.service.places().items()}
        store, now = self.service.store, self._now()
        for gpu in store.gpus():
            card = at.get((gpu.host, gpu.address), "")
            if not card.startswith(UUIDS) or card == gpu.card or (gpu.card and not gpu.card.startswith(UUIDS)):
                continue
            cause = f"guests see card {card} in it" + (f"; it was {gpu.card}" if gpu.card else "")
            event = HealthEvent(
                gpu.host, gpu.address, card, now, gpu.state, gpu.state, cause, source=Source.GUEST
            )  # fmt: skip
            store.put(with_card(gpu, card), event)  # somebody else was quicker: with the next look


def open_agents(
    service: HealthService,
    ledger: Ledger,
    gpus: Sequence[Gpu],
    api: CloudApi,
    latest_snapshot: Callable[[], Snapshot | None],
    portal: str,
    now: Callable[[], datetime],
) -> AgentController:
    """Return the loop for a site whose health has `agent`. Raises StoreError, and UsageError when the portal's address
    for guests is not known."""
    if not portal:
        raise UsageError(
            "health.agent asks servers to say how their GPUs are, and the portal's address for them is not known: "
            "pass it with --url"
        )
    agents = AgentService(service, GuestStore(ledger.database), gpus, latest_snapshot, service.rules, now)
    return AgentController(agents, AgentWords(api), portal, now, lambda: ledger.upkeep.leadership.is_leader(BOOKINGS))


def agents_loop(controller: AgentController) -> Loop:
    return Loop("agents", "Asks servers how their GPUs are, and writes down what they say.", PERIOD, controller.run)
