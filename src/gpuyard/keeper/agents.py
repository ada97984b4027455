"""The loop of agents: it asks servers for one by their metadata, takes tokens away from those that are gone, writes
down what was heard, and which card is where.

A server's metadata says one of: an address and a one-time code, for its guest to enrol with; ``on: ...``, once
something was heard of it; ``off``, which its owner has written there, and which is obeyed. What it says is read with
every look at the cloud, and put right: so a kill between any two steps costs a look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from gpuyard.cloud.agent_words import AgentWords
from gpuyard.cloud.api import CloudApi
from gpuyard.health.records import UUIDS, HealthEvent, HealthToken, Source
from gpuyard.health.store.guests import GuestStore
from gpuyard.health.tokens import digest_of, new_token
from gpuyard.keeper.agent_desk import ENROL, AgentDesk
from gpuyard.keeper.driver import Loop
from gpuyard.keeper.health_desk import HealthDesk
from gpuyard.keeper.turns import BOOKINGS
from gpuyard.ledger.ledger import Ledger
from gpuyard.model.errors import UsageError
from gpuyard.model.gpu import Gpu
from gpuyard.model.world import Server, Snapshot
from gpuyard.store.errors import StoreError

LOG = logging.getLogger(__name__)
PERIOD = 10.0
"""Seconds between looks."""
OFF = "off"
ON = "on:"
CODE_LASTS = timedelta(days=1)
RENEW = timedelta(hours=1)
"""A code that is good for less than this is replaced."""
SILENT = timedelta(minutes=15)
"""A server of which nothing was heard for so long gets another code: it may have lost its token with its disk."""
GONE = timedelta(minutes=10)
"""A server may be without GPUs for so long, as in a resize, before its token ends."""
LATER = timedelta(minutes=5)
"""Until a word is tried again that could not be written."""
WORDS_AT_ONCE = 50
"""That one look writes."""
FLUSH, PRUNE, CARDS, TOKENS = timedelta(minutes=5), timedelta(hours=1), timedelta(minutes=1), timedelta(minutes=1)


class WordsOnServers(Protocol):
    """Of servers: cloud/agent_words.py."""

    def put(self, server_id: str, text: str) -> bool: ...

    def remove(self, server_id: str) -> bool: ...


class AgentKeeper:
    """Of one site; one run at a time."""

    def __init__(
        self,
        desk: AgentDesk,
        words: WordsOnServers,
        portal: str,
        now: Callable[[], datetime],
        may: Callable[[], bool] = lambda: True,
    ) -> None:
        """`portal`: its address, for guests; `may`: whether this process is the one that acts."""
        self.desk, self._words, self._now, self._may = desk, words, now, may
        self._portal = portal.rstrip("/")
        self._on = f"{ON} {self._portal}/v1/agents says what is sent; write {OFF} here to end it"
        self._missing: dict[str, datetime] = {}
        """Servers with a token and without GPUs, since when."""
        self._later: dict[str, datetime] = {}
        self._done: dict[str, datetime] = {}

    def run(self) -> float | None:
        """Raises CloudError and StoreError."""
        if self._is_time("tokens", TOKENS):
            self.desk.read_tokens()
        snapshot = self.desk.seen()
        if snapshot is not None and self._may():
            has = self.desk.has().keys()
            self._end_what_is_gone(snapshot, has)
            self._write_words(snapshot, has)
            if self._is_time("cards", CARDS):
                self._name_cards()
        if self._is_time("flush", FLUSH):
            self.desk.flush()
        if self._is_time("prune", PRUNE):
            self.desk.guests.prune(self._now())
        return None

    def close(self) -> None:
        """What was heard since it was last written down."""
        try:
            self.desk.flush()
        except StoreError as error:
            LOG.warning("what agents have said in the last minutes is lost: %s", error)

    def _is_time(self, what: str, every: timedelta) -> bool:
        now = self._now()
        if not timedelta() <= now - self._done.get(what, now - every) < every:
            self._done[what] = now
            return True
        return False

    def _is_wanted(self, server: Server) -> bool:
        return server.project in self.desk.rules.projects or server.project_id in self.desk.rules.projects

    def _end_what_is_gone(self, snapshot: Snapshot, has: Collection[str]) -> None:
        now = self._now()
        for server in self.desk.servers():
            one = snapshot.servers.get(server)
            if one is not None and (not self._is_wanted(one) or one.agent == OFF):
                LOG.info("server %s: its agent is heard no more: %s", server, "off" if one.agent == OFF else "project")
                self._end(server)
            elif one is not None and server in has:
                self._missing.pop(server, None)
            elif now - self._missing.setdefault(server, now) >= GONE:
                LOG.info("server %s is gone, and so is the token of its agent", server)
                self._end(server)
        for known in (self._missing, self._later):
            for server in known.keys() - snapshot.servers.keys() - self.desk.servers():
                del known[server]

    def _end(self, server: str) -> None:
        self.desk.end(server)
        self.desk.store.end_tokens(ENROL, server)
        self.desk.forget([server])
        self._missing.pop(server, None)

    def _write_words(self, snapshot: Snapshot, has: Collection[str]) -> None:
        now, left, on = self._now(), WORDS_AT_ONCE, self.desk.servers()
        codes = {one.subject: one for one in self.desk.store.tokens(ENROL)}
        for server in sorted(has):
            one = snapshot.servers.get(server)
            if one is None or left <= 0 or now < self._later.get(server, now):
                continue
            if not self._is_wanted(one):
                if one.agent.startswith((ON, self._portal + " ")):
                    left -= 1
                    self._put(server, "")
            elif (
                one.status == "ACTIVE"
                and one.agent != OFF
                and (word := self._word(one, server in on, codes.get(server)))
            ):
                left -= 1
                self._put(server, word)

    def _word(self, server: Server, on: bool, code: HealthToken | None) -> str:
        """What is to be written; empty when that stands there already."""
        now = self._now()
        guest = self.desk.guest(server.id)
        if on and guest is not None and guest.heard is not None and now - guest.heard < SILENT:
            return "" if server.agent == self._on else self._on
        if code is not None and self._stands(server, code, now):
            return ""
        text, digest = new_token(ENROL)
        self.desk.store.end_tokens(ENROL, server.id)
        self.desk.store.add_token(HealthToken(digest, ENROL, server.id, now, now + CODE_LASTS))
        return f"{self._portal} {text}"

    def _stands(self, server: Server, code: HealthToken, now: datetime) -> bool:
        """Whether this code stands there, and is good: or was used a moment ago."""
        url, _, text = server.agent.partition(" ")
        if url != self._portal or digest_of(text) != code.digest or code.expires is None or now > code.expires - RENEW:
            return False
        return code.spent is None or now - code.spent < SILENT  # else the token that it gave was lost

    def _put(self, server: str, word: str) -> None:
        written = self._words.put(server, word) if word else self._words.remove(server)
        if not written:
            self._later[server] = self._now() + LATER

    def _name_cards(self) -> None:
        """GPUs get the cards that guests see in them."""
        at = {place: card for card, place in self.desk.places().items()}
        store, now = self.desk.store, self._now()
        for gpu in store.gpus():
            card = at.get((gpu.host, gpu.address), "")
            if not card.startswith(UUIDS) or card == gpu.card or (gpu.card and not gpu.card.startswith(UUIDS)):
                continue
            cause = f"guests see card {card} in it" + (f"; it was {gpu.card}" if gpu.card else "")
            event = HealthEvent(
                gpu.host, gpu.address, card, now, gpu.state, gpu.state, cause, source=Source.GUEST
            )  # fmt: skip
            store.put(replace(gpu, card=card), event)  # somebody else was quicker: with the next look


def open_agents(
    desk: HealthDesk,
    ledger: Ledger,
    gpus: Sequence[Gpu],
    api: CloudApi,
    seen: Callable[[], Snapshot | None],
    portal: str,
    now: Callable[[], datetime],
) -> AgentKeeper:
    """Of a site whose health has `agent`. Raises StoreError, and UsageError when guests cannot be told an address."""
    if not portal:
        raise UsageError(
            "health.agent asks servers to say how their GPUs are, and the portal's address for them is not known: "
            "pass it with --url"
        )
    agents = AgentDesk(desk, GuestStore(ledger.database), gpus, seen, desk.rules, now)
    return AgentKeeper(agents, AgentWords(api), portal, now, lambda: ledger.upkeep.turns.has_turn(BOOKINGS))


def agents_loop(keeper: AgentKeeper) -> Loop:
    return Loop("agents", "Asks servers how their GPUs are, and writes down what they say.", PERIOD, keeper.run)
