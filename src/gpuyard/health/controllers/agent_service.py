"""Authenticates agents in guests, judges their reports, and remembers what their GPUs do.

A report is judged first, then what is wrong is observed, durably, and only then the report is taken and the agent told
so: a crash in between loses no alarm. The last sample, and an hour of use by the minute for each card, are in memory
only. The loop (controllers/agent_controller.py) writes each agent's state and the use by the hour; a process that dies
loses what was said since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gpuyard.health.cards import STILL, CardSeen, Contradiction, Place, locate_cards
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.guests import (
    ALARM_LEFT,
    AgentState,
    Followed,
    ReplayError,
    follow,
    left_behind,
    standing,
    without_alarms,
)
from gpuyard.health.idle import Idleness, UseSeen, after, is_idle, lately
from gpuyard.health.planner import LONGEST_WAIT
from gpuyard.health.records import KEPT_BACK, HealthState, HealthToken, Observation
from gpuyard.health.samples import AgentReport, Sample, SampleRow
from gpuyard.health.store import HealthStore
from gpuyard.health.store.guests import GuestStore, Hour
from gpuyard.health.tokens import LONGEST, digest_of, new_token
from gpuyard.model.errors import GpuyardError
from gpuyard.model.gpu import Gpu
from gpuyard.model.signals import Judgement
from gpuyard.model.world import Snapshot
from gpuyard.site.health_rules import AgentRules, IdleRules, SiteHealth

ENROL, AGENT = "enrol", "agent"
"""Purposes of tokens."""
BATCH = 6
"""Samples in a report, unless something is wrong."""
LATELY = 3
"""Reports that may be missing of an agent that is heard."""
SILENT = timedelta(minutes=15)
"""A server of which nothing was heard for so long is silent, or for LATELY reports where those are further apart; it
gets another code, since it may have lost its token with its disk."""
COUNTED = 4
"""Cards of a server that are counted by the hour, for each GPU that it has: an agent can make up any number."""
MINUTES = 60
UNKNOWN = 255
FAR = timedelta(hours=1)
"""A sample that was taken longer ago says nothing of the use by the minute."""
ALARM_LASTS = LONGEST_WAIT + timedelta(hours=1)
"""An alarm of an agent that has said nothing for so long is not repeated: its GPU is quarantined by then."""

NEVER, NOTHING = Idleness(), AgentState()


class AgentRefusedError(GpuyardError):
    """An agent is refused. `status` and `code` as in a problem document."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


def no_token() -> AgentRefusedError:
    return AgentRefusedError(401, "no_token", "This is no token of an agent, or its server is gone, or it was ended.")


class UseByMinute:
    """Percent of use by the minute, of the last hour."""

    def __init__(self) -> None:
        self._minutes = bytearray([UNKNOWN]) * MINUTES
        self._last = 0
        self._count = 0

    def add(self, time: datetime, use: int | None) -> None:
        """Add a sample; one that is older than the last is not counted."""
        minute = int(time.timestamp()) // 60
        if use is None or minute < self._last:
            return
        if minute > self._last:
            for between in range(max(self._last + 1, minute - MINUTES + 1), minute + 1):
                self._minutes[between % MINUTES] = UNKNOWN
            self._last, self._count = minute, 0
        mean = self._minutes[minute % MINUTES] if self._count else 0
        self._minutes[minute % MINUTES] = (mean * self._count + use) // (self._count + 1)
        self._count += 1

    def until(self, now: datetime) -> list[int | None]:
        """Return the percents of an hour, the oldest first, the last is this minute. None: nothing was heard."""
        minute = int(now.timestamp()) // 60
        return [self._at(past_minute) for past_minute in range(minute - MINUTES + 1, minute + 1)]

    def _at(self, minute: int) -> int | None:
        use = self._minutes[minute % MINUTES] if self._last - MINUTES < minute <= self._last else UNKNOWN
        return None if use == UNKNOWN else use


@dataclass
class CardUse:
    """The use of a card in a server."""

    row: SampleRow | None = None
    """The last one."""
    idle: Idleness = NEVER
    minutes: UseByMinute = field(default_factory=UseByMinute)


@dataclass
class AgentGuest:
    """The state of a server's agent, in memory."""

    state: AgentState = NOTHING
    heard: datetime | None = None
    driver: str = ""
    seen: int = 0
    cards: dict[str, CardUse] = field(default_factory=dict)
    """By UUID; those of its last report."""
    last_located: tuple[object, datetime] | None = None
    """The places and cards that were last taken down, and when."""
    counted: set[str] = field(default_factory=set)
    """Cards of which what they do is counted by the hour."""


@dataclass(frozen=True)
class Heard:
    """A report that was judged, and not taken yet."""

    server: str
    gpus: int
    """The number of GPUs that it has."""
    report: AgentReport
    now: datetime
    before: AgentState
    followed: Followed
    observations: list[Observation]


class AgentService:
    """The service for agents of one site. Safe to use from several threads."""

    def __init__(
        self,
        service: HealthService,
        guests: GuestStore,
        gpus: Iterable[Gpu],
        latest_snapshot: Callable[[], Snapshot | None],
        rules: SiteHealth,
        now: Callable[[], datetime],
    ) -> None:
        """`latest_snapshot`: the cloud, as of the last look; `rules`: with `agent`. Raises StoreError."""
        assert rules.agent is not None
        self.rules: AgentRules = rules.agent
        self._site, self._service, self.seen, self.now = rules, service, latest_snapshot, now
        # Also where nothing follows from it, it is shown since when a GPU has done nothing.
        self.suspect: timedelta = rules.suspect
        self._below = (rules.idle or IdleRules.model_validate({})).below
        gpus = list(gpus)
        self._providers = {gpu.provider_name: (gpu.host, gpu.address) for gpu in gpus}
        self._pools = {(gpu.host, gpu.address): gpu.pool for gpu in gpus}
        self.store: HealthStore = service.store
        self.guests = guests
        self._lock = threading.Lock()
        self._tokens: dict[str, str] = {}
        self.read_tokens()
        self._known = {server: AgentGuest(state, heard) for server, (state, heard) in guests.guests().items()}
        self._cards = guests.cards()
        self._places = {card: sighting.place for card, sighting in self._cards.items() if sighting.place is not None}
        self._changed_cards: dict[str, CardSeen] = {}
        self._changed_guests: set[str] = set()
        self._hours: dict[tuple[str, str, datetime], Hour] = {}
        self._had: tuple[Snapshot, dict[str, frozenset[Place]]] | None = None

    # Who it is

    def has(self) -> Mapping[str, frozenset[Place]]:
        """Return by server the GPUs that it has, as the cloud was seen last. Raises AgentRefusedError before that."""
        snapshot = self.seen()
        if snapshot is None:
            raise AgentRefusedError(503, "no_data_yet", "The cloud has not been seen yet; try again in a minute.")
        cached = self._had
        if cached is None or cached[0] is not snapshot:
            places_by_server: dict[str, set[Place]] = {}
            for provider, server in snapshot.holders.items():
                if provider in self._providers:
                    places_by_server.setdefault(server, set()).add(self._providers[provider])
            self._had = cached = snapshot, {server: frozenset(places) for server, places in places_by_server.items()}
        return cached[1]

    def enrol(self, server: str, code: str) -> str:
        """Exchange a code, which is good once, for the token of a server. Raises AgentRefusedError and StoreError."""
        digest, now = digest_of(code), self.now()
        stored_token = self.store.token(digest) if len(code) <= LONGEST else None
        if stored_token is None or stored_token.purpose != ENROL or stored_token.subject != server:
            raise AgentRefusedError(401, "no_code", "This is no code for this server; read its metadata again.")
        if server not in self.has():
            raise AgentRefusedError(409, "no_gpus", "This server has none of this site's GPUs now.")
        if stored_token.spent is not None:
            raise AgentRefusedError(409, "spent", "This code was used before; another one comes into the metadata.")
        if not self.store.spend(digest, now):
            raise AgentRefusedError(401, "expired", "This code is too old, or was just used; read the metadata again.")
        self.end(server)
        text, digest = new_token(AGENT)
        self.store.add_token(HealthToken(digest, AGENT, server, now))
        with self._lock:
            self._tokens[digest] = server
        return text

    def server_of(self, token: str) -> str | None:
        """Return the server of a token that is known in memory; None does not say that there is none."""
        return self._tokens.get(digest_of(token)) if len(token) <= LONGEST else None

    def look_up(self, token: str) -> str:
        """Return the server of a token by the database: another process may have given it. Raises AgentRefusedError and
        StoreError."""
        stored_token = self.store.token(digest_of(token)) if len(token) <= LONGEST else None
        if stored_token is None or stored_token.purpose != AGENT:
            raise no_token()
        with self._lock:
            self._tokens[stored_token.digest] = stored_token.subject
        return stored_token.subject

    def end(self, server: str) -> None:
        """End the tokens of a server. Raises StoreError."""
        self.store.end_tokens(AGENT, server)
        with self._lock:
            self._tokens = {digest: subject for digest, subject in self._tokens.items() if subject != server}

    def read_tokens(self) -> None:
        """Read the tokens anew, since other processes give and end some. Raises StoreError."""
        servers_by_digest = {token.digest: token.subject for token in self.store.tokens(AGENT)}
        with self._lock:
            self._tokens = servers_by_digest

    def servers(self) -> frozenset[str]:
        """The servers that have a token."""
        return frozenset(self._tokens.values())

    # What it says

    def judge(self, server: str, report: AgentReport) -> Heard:
        """Return what follows from a report. Only places of cards are taken down by it: `observe` what is wrong, and
        `take` it then. Raises AgentRefusedError, ReplayError, and StoreError."""
        has, now = self.has().get(server), self.now()
        if has is None:
            raise AgentRefusedError(409, "no_gpus", "This server has none of this site's GPUs now.")
        with self._lock:
            guest = self._known.get(server) or AgentGuest()
            wrong = self._locate_cards(server, guest, has, report.cards, now)
            self._known[server] = guest
            followed = follow(guest.state, report, server, has, self._places, now, self._is_accepted)
            candidates = [*followed.observations, *_of_contradictions(wrong, server, has, now)]
            observations = [observation for observation in candidates if self.judgement(observation) is not None]
            return Heard(server, len(has), report, now, guest.state, followed, observations)

    def judgement(self, observation: Observation) -> Judgement | None:
        """Return what follows from an observation; None: nothing, its signal is off there."""
        return self._in_force((observation.host, observation.address), observation.code)

    def _is_note(self, place: Place, code: str) -> bool:
        return self._in_force(place, code) in (None, Judgement.NOTE)

    def _in_force(self, place: Place, code: str) -> Judgement | None:
        return self._service.verdicts.of(code, "/".join(place), self._pools.get(place, "")).in_force

    def _is_accepted(self, place: Place, fact: str) -> bool:
        """Is asked only where something is wrong."""
        gpu = self.store.gpu(*place)
        return gpu is not None and gpu.baseline is not None and bool(gpu.baseline.facts.get(fact))

    def observe(self, heard: Heard, observations: Sequence[Observation]) -> None:
        """Write down those of a report's observations. Durable when this returns. Raises StoreError."""
        self._service.observe(observations)
        self.guests.keep({heard.server: (heard.followed.state, heard.now)})

    def take(self, heard: Heard) -> None:
        """Remember a report that was judged. Raises ReplayError when another report of the server was taken since."""
        with self._lock:
            guest = self._known.get(heard.server) or AgentGuest()
            if guest.state is not heard.before:
                raise ReplayError("another report of this server came at the same time")
            report, self._known[heard.server] = heard.report, guest
            guest.state, guest.heard = heard.followed.state, heard.now
            guest.driver, guest.seen = report.driver, report.seen
            guest.cards = {card: guest.cards.get(card) or CardUse() for card in report.cards if card}
            self._changed_guests.add(heard.server)
            self._use(heard, guest)

    def _locate_cards(
        self, server: str, guest: AgentGuest, has: frozenset[Place], cards: Sequence[str], now: datetime
    ) -> list[Contradiction]:
        """Where its cards are: once in a while, and when something has changed."""
        current = (has, cards)
        news = guest.last_located is None or guest.last_located[0] != current
        if guest.last_located is not None and not news and now - guest.last_located[1] < STILL / 3:
            return []
        guest.last_located = current, now
        if all(self._places.get(card) in has for card in cards):  # as it was, mostly
            changed = {card: replace(self._cards[card], seen=now, server=server) for card in cards}
            wrong: list[Contradiction] = []
        else:
            changed, wrong = locate_cards(self._cards, server, has, cards, now)
        for card, sighting in changed.items():
            if sighting.places:
                self._cards[card] = sighting
            else:
                self._cards.pop(card, None)
            self._places.pop(card, None)
            if sighting.place is not None:
                self._places[card] = sighting.place
        self._changed_cards |= changed
        return wrong if news else []

    def _use(self, heard: Heard, guest: AgentGuest) -> None:
        newest = heard.report.samples[-1].number
        for card in guest.cards:
            if len(guest.counted) < COUNTED * heard.gpus:
                guest.counted.add(card)
        for sample in heard.followed.fresh:
            ago = timedelta(seconds=(newest - sample.number) / 10)
            self._sample(heard.server, guest, heard.report.cards, sample, heard.now - ago, recent=ago < FAR)

    def _sample(
        self, server: str, guest: AgentGuest, cards: Sequence[str], sample: Sample, time: datetime, *, recent: bool
    ) -> None:
        for card, row in zip(cards, sample.rows, strict=True):
            if not card:
                continue
            card_use = guest.cards[card]
            card_use.row, use = row, row.use if row else None
            if recent:
                card_use.minutes.add(time, use)
                card_use.idle = after(card_use.idle, time, use, self._below)
            if row is not None and use is not None and card in guest.counted:
                start = _hour(time)
                new = Hour(server, card, start, 1, use, row.memory or 0, row.power or 0, row.temperature or 0)
                old = self._hours.get((server, card, start))
                self._hours[server, card, start] = old.plus(new) if old else new

    def repeat_alarms(self) -> None:
        """Observe anew whatever goes on by the last report of a server, whichever process took it: a suspect GPU is not
        fine again as long as its guest's alarm stands, and not either because its server is gone. Raises StoreError,
        and AgentRefusedError before the cloud was seen."""
        has, now = self.has(), self.now()
        last = self.guests.guests()
        with self._lock:
            for server, guest in self._known.items():
                if guest.heard is not None and (server not in last or last[server][1] <= guest.heard):
                    last[server] = guest.state, guest.heard
        alarms, ended = list[Observation](), dict[str, tuple[AgentState, AgentState, datetime]]()
        for server, (state, heard) in last.items():
            if now - heard > ALARM_LASTS:
                continue
            mine = has.get(server, frozenset())
            alarms += standing(state, server, mine, now, self._is_note)
            for place, codes in left_behind(state, mine, self._is_note).items():
                gpu = self.store.gpu(*place)
                if gpu is None or gpu.state not in KEPT_BACK:
                    continue
                before, after, _ = ended.get(server, (state, state, heard))
                ended[server] = before, without_alarms(after, [place]), heard
                if gpu.state is HealthState.SUSPECT:
                    words = f"the last report of its agent, of {heard:%Y-%m-%d %H:%M} UTC, has {codes}"
                    alarms.append(Observation(*place, ALARM_LEFT, now, words, server))
        if alarms:
            self._service.observe(alarms)
        self._end_alarms(ended)

    def _end_alarms(self, ended: Mapping[str, tuple[AgentState, AgentState, datetime]]) -> None:
        """Forget those that have gone with their GPUs: whoever clears such a GPU clears it for good. `ended`: server ->
        where its agent stood, where it stands without them, and when it was heard."""
        states_by_server = {}
        with self._lock:
            for server, (before, after, heard) in ended.items():
                guest = self._known.get(server)
                if guest is None or guest.state == before:  # else there was another report meanwhile
                    states_by_server[server] = after, heard
                    if guest is not None:
                        guest.state = after
        if states_by_server:
            self.guests.keep(states_by_server)

    @property
    def silence(self) -> timedelta:
        """The time after which an agent that was not heard is silent; it sends a report for each BATCH samples."""
        return max(SILENT, LATELY * BATCH * timedelta(seconds=self.rules.period))

    def last_heard(self, servers: Sequence[str]) -> dict[str, datetime]:
        """Return when each of them was last heard, by whichever process; without those that never were. Raises
        StoreError."""
        if not servers:
            return {}
        stored = self.guests.guests()
        heard_by_server = {server: stored[server][1] for server in servers if server in stored}
        with self._lock:
            for server in servers:
                guest = self._known.get(server)
                if guest is not None and guest.heard is not None:
                    heard_by_server[server] = max(guest.heard, heard_by_server.get(server, guest.heard))
        return heard_by_server

    def observe_silence(self, server: str, heard: datetime) -> None:
        """Observe that an agent is silent. Raises StoreError, and AgentRefusedError before the cloud was seen."""
        words, now = f"nothing was heard from its agent since {heard:%Y-%m-%d %H:%M} UTC", self.now()
        places = sorted(self.has().get(server, ()))
        self._service.observe([Observation(host, at, "agent-silent", now, words, server) for host, at in places])

    # What is known

    def guest(self, server: str) -> AgentGuest | None:
        """Return the state of a server's agent, to show it; it may change meanwhile."""
        return self._known.get(server)

    def place(self, card: str) -> Place | None:
        """Return the place of a card; None while it is not known."""
        return self._places.get(card)

    def places(self) -> Mapping[str, Place]:
        return self._places

    def readings(self) -> dict[Place, SampleRow]:
        """Return the last sample of each GPU whose card is known, of servers that have it now and were heard lately."""
        snapshot_has = self.has() if self.seen() is not None else {}
        now, rows_by_place = self.now(), {}
        with self._lock:
            for server, guest in self._known.items():
                mine = snapshot_has.get(server, frozenset())
                if not mine or not self._is_lately(guest.heard, now):
                    continue
                for card, card_use in guest.cards.items():
                    place = self._places.get(card)
                    if card_use.row is not None and place in mine:
                        rows_by_place[place] = card_use.row
        return rows_by_place

    def heard(self) -> tuple[int, int]:
        """Return how many servers with a token were heard lately, and how many were not."""
        now = self.now()
        with self._lock:
            lately = [
                self._is_lately((self._known.get(server) or AgentGuest()).heard, now) for server in self.servers()
            ]
        return sum(lately), len(lately) - sum(lately)

    def _is_lately(self, heard: datetime | None, now: datetime) -> bool:
        return heard is not None and abs(now - heard) <= LATELY * BATCH * timedelta(seconds=self.rules.period)

    def use_of(self, server: str, gpus: Collection[Place], since: datetime | None) -> list[UseSeen]:
        """Return the use of these GPUs, which a server has, since then: one for each. The hour of the clock in which
        that is counts whole. None: of the last hour, by what is in memory alone. Raises StoreError, and
        AgentRefusedError before the cloud was seen."""
        now = self.now()
        whole_server = self.has().get(server, frozenset()) <= {*gpus}  # then they need not be told apart
        hours = self._hours_of(server, since) if since else {}
        length = int((now - since).total_seconds()) // 60 + 1 if since else MINUTES
        gpu_uses: list[UseSeen] = []
        with self._lock:
            guest = self._known.get(server)
            row_counts = guest is not None and self._is_lately(guest.heard, now)
            for card, card_use in guest.cards.items() if guest else ():
                place, hour = self._places.get(card), hours.get(card)
                if place not in gpus and not (place is None and whole_server):
                    continue
                use, minutes = lately(card_use.minutes.until(now)[-length:]) if length > 0 else (None, 0)
                row = card_use.row if row_counts else None
                gpu_uses.append(
                    UseSeen(
                        "/".join(place) if place else "", server, guest.heard if guest else None, use, minutes,
                        round(hour.use / hour.samples) if hour else None,
                        hour.samples * self.rules.period if hour else 0, card_use.idle.resting(now),
                        row.memory if row else None, row.temperature if row else None,
                    )
                )  # fmt: skip
        named = {gpu_use.gpu for gpu_use in gpu_uses}
        untold = [] if "" in named else [name for place in sorted(gpus) if (name := "/".join(place)) not in named]
        missing = len(gpus) - len(gpu_uses)
        return [*gpu_uses, *(UseSeen(name, server) for name in (untold or [""] * missing)[: max(0, missing)])][
            : len(gpus)
        ]

    def _hours_of(self, server: str, since: datetime) -> dict[str, Hour]:
        """All hours of each card as one. Raises StoreError."""
        hours_by_card: dict[str, Hour] = {}
        first, last = _hour(since), _hour(self.now())
        stored = self.guests.hours([server], first)
        with self._lock:
            guest = self._known.get(server)
            fresh = [
                hour
                for card in (guest.cards if guest else ())
                for start in (last - timedelta(hours=1), last)  # more is written down by now, or soon
                if start >= first and (hour := self._hours.get((server, card, start)))
            ]
        for hour in (*stored, *fresh):
            hours_by_card[hour.card] = hours_by_card[hour.card].plus(hour) if hour.card in hours_by_card else hour
        return hours_by_card

    def idle_servers(self) -> frozenset[str]:
        """Return the servers that do nothing with their GPUs for longer than the site's rules say; none without such
        rules."""
        rules, now = self._site.idle, self.now()
        if rules is None or self.seen() is None:
            return frozenset()
        has = self.has()
        with self._lock:
            return frozenset(
                server
                for server, guest in self._known.items()
                if len(guest.cards) >= len(has.get(server, ())) > 0
                and is_idle((card.idle for card in guest.cards.values()), rules, now)
            )

    def flush(self) -> None:
        """Write what was heard. What cannot be written is kept for the next time. Raises StoreError."""
        with self._lock:
            guests = {server: self._known[server] for server in self._changed_guests}
            cards, hours = self._changed_cards, self._hours
            self._changed_guests, self._changed_cards, self._hours = set(), {}, {}
        try:
            states = {server: (guest.state, guest.heard or self.now()) for server, guest in guests.items()}
            self.guests.keep(states, cards.values(), list(hours.values()))
        except BaseException:
            with self._lock:
                self._changed_guests |= guests.keys()
                self._changed_cards = {**cards, **self._changed_cards}
                for key, hour in hours.items():
                    newer = self._hours.get(key)
                    self._hours[key] = hour.plus(newer) if newer else hour
            raise

    def forget(self, servers: Iterable[str]) -> None:
        """Forget servers that are gone."""
        with self._lock:
            for server in servers:
                self._known.pop(server, None)
                self._changed_guests.discard(server)


def _hour(time: datetime) -> datetime:
    return datetime.fromtimestamp(time.timestamp() // 3600 * 3600, UTC)


def _of_contradictions(
    wrong: Iterable[Contradiction], server: str, has: Collection[Place], now: datetime
) -> list[Observation]:
    """Of the GPUs of the server that says so: of others it is not believed."""
    return [
        Observation(host, address, "contradiction", now, contradiction.why, server)
        for contradiction in wrong
        for host, address in sorted(contradiction.places & set(has))
    ]
