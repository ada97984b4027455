"""Requests about bookings, health and runners to a portal's /v1, as plain rows.

A request that is safe, or that carries an idempotency key, is repeated after PAUSES when no answer came or a gateway
answered for a portal that starts. Others are made once, since nobody knows whether they arrived.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from gpuyard.client.errors import error_of
from gpuyard.client.portal import PortalSession, PortalUnreachableError, Reply
from gpuyard.model.errors import BlockedError, UsageError

Row = dict[str, Any]
PAGE = 500
"""Bookings in one page."""
BEGIN_OF_ID = re.compile(r"[0-9a-f][0-9a-f-]{0,34}")
"""Beginning of a UUID, which has 36 characters."""
BOOKING_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
JOB_ID = re.compile(r"[^/]{1,253}(?:/set(?:/[^/]{1,253}){1,3})?/[0-9]{1,20}")
"""Id of a job: ``github.com/123456``, or of a scale set ``github.com/set/acme/7/123456``; one repository's has
``acme/solver``."""
MOST_ROWS = 500
"""Jobs, and runners that have ended, in one answer."""
PAUSES = (0.5, 1.0, 2.0)
"""Seconds between repeated requests."""
AGAIN = frozenset({502, 503, 504})
"""Statuses of a gateway or of a portal that starts."""
LOOK_EVERY = 1.0
"""Seconds between requests about a booking that is waited for."""
USED_UP = 30.0
"""Seconds after which servers from before are taken to use a whole booking: where they use a part, one of the next runs
of the portal's loop reports that the rest is usable."""
PATIENCE = 5.0
"""The longest Retry-After, in seconds, that is waited for; for a longer one the caller gets the answer."""


class Client:
    """Client of one portal. Safe to use from several threads. Every method raises GpuyardError: see errors.py."""

    def __init__(
        self,
        session: PortalSession,
        *,
        sleep: Callable[[float], None] = time.sleep,
        new_key: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._session = session
        self._sleep = sleep
        self._new_key = new_key

    @property
    def url(self) -> str:
        return self._session.url

    # Bookings

    def me(self) -> Row:
        return self._row("GET", "/v1/me")

    def create(self, ask: Mapping[str, Any]) -> list[Row]:
        """Book; return several rows for a recurring request. It has a key, so that it can be repeated without harm."""
        body = self._row("POST", "/v1/bookings", ask, key=self._new_key())
        return list(body["bookings"]) if "bookings" in body else [body]

    def check(self, ask: Mapping[str, Any]) -> Row:
        """Return ``fits``, and ``reasons`` and ``alternatives`` when it does not."""
        return self._row("POST", "/v1/bookings/check", ask, safe=True)

    def bookings(self, **query: object) -> Iterator[Row]:
        """Yield all that match, page by page, in order of start."""
        marker = ""
        while True:
            page = self._row("GET", "/v1/bookings", query={**query, "limit": PAGE, "marker": marker})["bookings"]
            yield from page
            if len(page) < PAGE:
                return
            marker = page[-1]["id"]

    def booking(self, id: str) -> tuple[Row, str]:
        """Return the booking and its ETag. Here and below the first characters of an id are enough when no other
        begins so."""
        reply = self._ask("GET", self._path(id), safe=True)
        return dict(reply.body), reply.headers.get("etag", "")

    def use(self, id: str) -> Row | None:
        """Return what the GPUs of a booking (its whole id) do; None where it is not on, is somebody else's, or no
        server of the site is asked."""
        uses = self._row("GET", "/v1/uses", query={"booking": id})["uses"]
        return dict(uses[0]) if uses else None

    def edit(self, id: str, changes: Mapping[str, Any], etag: str) -> Row:
        """Change a booking. Raises ChangedError when it no longer has this ETag."""
        return self._row("PATCH", self._path(id), changes, headers={"If-Match": etag})

    def extend(self, id: str, body: Mapping[str, Any], etag: str) -> Row:
        """Extend a booking. Raises ChangedError, as `edit`."""
        return self._row("POST", f"{self._path(id)}/extend", body, headers={"If-Match": etag})

    def wait_until_usable(self, row: Row) -> Row:
        """Return the booking once its owner can start a server: some seconds after its start, which may be a long time
        off; or when for USED_UP seconds it had servers, and none could be started: then those that its owner had
        before use all of it. Raises BlockedError when that will not come by itself: it waits for somebody, or is
        over."""
        taken = 0.0
        while not row.get("usable_since") and taken < USED_UP:
            if row["state"] not in ("confirmed", "active"):
                raise BlockedError(f"booking {row['id']} is {row['state']}: there is nothing to wait for")
            self._sleep(LOOK_EVERY)
            row = self.booking(row["id"])[0]
            taken = taken + LOOK_EVERY if row.get("claimed") else 0.0
        return row

    def act(self, id: str, verb: str, reason: str = "", series: bool = False, fault: str = "") -> Row:
        """Act on a booking: ``cancel``, ``end``, ``approve``, ``decline``, ``accept``, ``open``. `series`: for
        ``cancel``. `fault`: for ``end``, what was wrong with its GPUs."""
        body = {**({"reason": reason} if reason else {}), **({"series": True} if series else {})}
        body |= {"fault": fault} if fault else {}
        return self._row("POST", f"{self._path(id)}/{verb}", body)

    def _path(self, id: str) -> str:
        """Where a booking is. Raises UsageError for what is no id, and for the beginning of several."""
        if not BOOKING_ID.fullmatch(id):
            raise UsageError(
                f"{id!r} is no id of a booking; 'gpuyard booking list' and, of GPUs that are held, 'gpuyard gpu holds' "
                "show them"
            )
        if BEGIN_OF_ID.fullmatch(id):
            ids = [row["id"] for row in self._row("GET", "/v1/bookings", query={"id": id, "limit": 4})["bookings"]]
            if len(ids) > 1:
                raise UsageError(f"several bookings begin with {id!r}: {', '.join(ids)}; type more of the id")
            id = ids[0] if ids else id
        return f"/v1/bookings/{quote(id, safe='')}"

    def rules(self, pool: str, project: str = "") -> Row:
        return self._row("GET", f"/v1/pools/{quote(pool, safe='')}/rules", query={"project": project})

    def check_rules(self, body: Mapping[str, Any]) -> list[Row]:
        """Return what bookings would lose by changed rules."""
        return list(self._row("POST", "/v1/rules/check", body, safe=True)["findings"])

    # Holds, feeds, audit, GPUs

    def hold(self, body: Mapping[str, Any]) -> list[Row]:
        return list(self._row("POST", "/v1/holds", body)["bookings"])

    def expect_back(self, body: Mapping[str, Any]) -> list[Row]:
        return list(self._row("POST", "/v1/troubles", body)["troubles"])

    def holds(self) -> list[Row]:
        return list(self._row("GET", "/v1/holds")["bookings"])

    def audit(self, **query: object) -> list[Row]:
        return list(self._row("GET", "/v1/audit", query=query)["entries"])

    def feeds(self, user: str = "") -> list[Row]:
        return list(self._row("GET", "/v1/feeds", query={"user": user})["feeds"])

    def sessions(self, user: str) -> list[Row]:
        return list(self._row("GET", "/v1/sessions", query={"user": user})["sessions"])

    def end_sessions(self, user: str) -> int:
        """End sessions; return how many there were."""
        return int(self._row("DELETE", "/v1/sessions", query={"user": user})["ended"])

    def create_feed(self, scope: str, target: str, days: int) -> Row:
        """Create a feed: ``url``, or ``path`` below the portal's address, which is returned only this once."""
        return self._row("POST", "/v1/feeds", {"scope": scope, "target": target, "days": days})

    def delete_feed(self, id: str) -> None:
        self._ask("DELETE", f"/v1/feeds/{quote(id, safe='')}")

    def gpus(self, **query: object) -> list[Row]:
        return list(self._row("GET", "/v1/gpus", query=query)["gpus"])

    def pools(self) -> list[Row]:
        """Return the pools of the site, with how many GPUs of each are free."""
        return list(self._row("GET", "/v1/pools")["pools"])

    def flavors(self, **query: object) -> Row:
        """Return what a project could start now: ``flavors``, and when the cloud was observed."""
        return self._row("GET", "/v1/flavors", query=query)

    # The health of GPUs

    def health(self, **query: object) -> list[Row]:
        return list(self._row("GET", "/v1/health", query=query)["gpus"])

    def gpu_health(self, gpu: str, limit: int = 100) -> Row:
        """Return ``gpu``, and ``events``, the newest first. `gpu` here and below: ``host/address``."""
        return self._row("GET", _gpu_path(gpu), query={"limit": limit})

    def repairs(self, by: str = "card") -> Row:
        """Return ``out``: what is out of use; ``repeats``: what went bad how often, by ``card``, ``host`` or
        ``slot``."""
        return self._row("GET", "/v1/repairs", query={"by": by})

    def report(self, gpu: str, words: str) -> Row:
        return self._row("POST", f"{_gpu_path(gpu)}/report", {"words": words})

    def quarantine(self, gpu: str, comment: str) -> Row:
        return self._row("POST", f"{_gpu_path(gpu)}/quarantine", {"comment": comment})

    def accept(self, targets: Sequence[str], *, canary: bool = True, fresh: bool = False) -> Row:
        """Have GPUs accepted by servers; return what is tried now, and what is not and why. `fresh`: what they show
        becomes their baseline."""
        body = {"targets": list(targets), "canary": canary}
        return self._row(
            "POST", "/v1/acceptances", body | ({"fresh": True} if fresh else {})
        )  # older portals refuse it

    def acceptances(self) -> list[Row]:
        """Return the last try of every slot that ever had one."""
        return list(self._row("GET", "/v1/acceptances")["tries"])

    def acceptance(self, batch: str) -> Row:
        return self._row("GET", f"/v1/acceptances/{quote(batch, safe='')}")

    def repair(self, gpu: str, step: str, comment: str) -> Row:
        """Take a step of a repair: ``start``, ``note``, ``done``, ``abandon``, ``return``; or ``release``: back to use,
        not repaired."""
        path = step if step == "release" else f"repair/{step}"
        return self._row("POST", f"{_gpu_path(gpu)}/{path}", {"comment": comment})

    def lend_gpu(self, gpu: str, minutes: int, comment: str) -> Row:
        """Return ``gpu``, and ``loan``, a booking with the ``command`` that starts a server there."""
        return self._row("POST", f"{_gpu_path(gpu)}/repair/lend", {"minutes": minutes, "comment": comment})

    def host_token(self, host: str, purpose: str) -> str:
        """Return a new token of a host, for ``watch`` or ``scrub``; it is returned only this once."""
        return str(self._row("POST", f"/v1/hosts/{quote(host, safe='')}/tokens", {"purpose": purpose})["token"])

    # Maintenances of hosts

    def maintenances(self, host: str = "", *, past: bool = False) -> list[Row]:
        """Return the maintenances that are not over, of a host or of all; `past`: then those that are, the newest
        first."""
        query = {"host": host, "past": "true" if past else ""}
        return list(self._row("GET", "/v1/maintenances", query=query)["maintenances"])

    def check_maintenance(self, body: Mapping[str, Any]) -> Row:
        """Return ``servers``, ``moves`` and ``stays``: the effects of a maintenance."""
        return self._row("POST", "/v1/maintenances/check", body, safe=True)

    def plan_maintenance(self, body: Mapping[str, Any]) -> Row:
        return self._row("POST", "/v1/maintenances", body)

    def maintenance_step(self, id: str, step: str, body: Mapping[str, Any]) -> Row:
        """Take a step of a maintenance: ``start``, ``allow``, ``done``, ``extend``, ``cancel``."""
        return self._row("POST", f"/v1/maintenances/{quote(id, safe='')}/{step}", body)

    # Runners for GitHub jobs

    def queue(self) -> list[Row]:
        """Return the jobs that wait, those with a runner first, then in the order of their turns."""
        jobs: list[Row] = []
        more = 1
        while more > 0:
            page = self._row("GET", "/v1/queue", query={"skip": len(jobs)})
            jobs += page["jobs"]
            more = int(page["more"]) if page["jobs"] else 0
        return jobs

    def jobs(self, states: Sequence[str], repository: str = "", limit: int = MOST_ROWS) -> list[Row]:
        """Return jobs, the newest first."""
        query = {"state": list(states), "repository": repository, "limit": limit}
        return list(self._row("GET", "/v1/jobs", query=query)["jobs"])

    def job(self, id: str) -> Row:
        """Return a job with ``runners`` and ``events``."""
        return self._row("GET", _job_path(id))

    def job_log(self, id: str) -> str:
        """Return the end of the log of the runner that a job was last given to, without what a terminal would act upon;
        "" when there is none."""
        return str(self._ask("GET", f"{_job_path(id)}/log", safe=True).body or "")

    def runners(self, ended: int = 0) -> Row:
        """Return ``runners``, with so many of those that have ended, and ``errors``: what is wrong with GitHub, for
        admins."""
        return self._row("GET", "/v1/runners", query={"ended": ended})

    # What GPUs were used for

    def usage(self, query: Mapping[str, object]) -> Row:
        """Return ``lines`` and ``total``; amounts are GPU-seconds. `query`: as of the API."""
        return self._row("GET", "/v1/usage", query=query)

    def usage_intervals(self, query: Mapping[str, object]) -> list[Row]:
        """Return intervals by start, cut to the days that are asked for."""
        return list(self._row("GET", "/v1/usage/intervals", query=query)["lines"])

    def budgets(self) -> list[Row]:
        """Return the budgets of one's projects; for admins of all."""
        return list(self._row("GET", "/v1/budgets")["lines"])

    # The wire

    def _row(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        key: str = "",
        safe: bool = False,
    ) -> Row:
        more = {**(headers or {}), **({"Idempotency-Key": key} if key else {})}
        safe = safe or bool(key) or method == "GET"
        answer = self._ask(method, path, body, query=query, headers=more, safe=safe).body
        return dict(answer) if isinstance(answer, dict) else {}

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        safe: bool = False,
    ) -> Reply:
        """The answer, when it is a good one. `safe`: may be asked again when no answer came."""
        pauses = iter(PAUSES if safe else ())
        while True:
            pause = next(pauses, None)
            try:
                reply = self._session.request(method, path, body=body, query=query, headers=headers)
            except PortalUnreachableError:
                if pause is None:
                    raise
            else:
                if reply.status < 300:
                    return reply
                wait = _wait(reply)
                if pause is None or reply.status not in AGAIN or wait > PATIENCE:
                    raise error_of(reply, self.url)
                pause = max(pause, wait)
            self._sleep(pause)


def _gpu_path(gpu: str) -> str:
    """Raises UsageError for what is no name of a GPU."""
    host, slash, address = gpu.rpartition("/")
    if not slash or not host or not address or "/" in host:
        raise UsageError(f"{gpu!r} is no GPU; write host/address, as in gpu-1/0000:27:00.0")
    return f"/v1/health/{quote(host, safe='')}/{quote(address, safe=':')}"


def _job_path(id: str) -> str:
    """Raises UsageError for what is no id of a job."""
    if not JOB_ID.fullmatch(id):
        raise UsageError(f"{id!r} is no id of a job; write it as 'gpuyard runner jobs' does: github.com/123456")
    return f"/v1/jobs/{quote(id, safe='')}"


def _wait(reply: Reply) -> float:
    try:
        return float(reply.headers.get("retry-after", "0"))
    except ValueError:  # a date: not one of ours
        return 0.0
