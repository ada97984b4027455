"""Who is logged in, and ending that everywhere: for oneself, and for admins of others."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query
from pydantic import BaseModel, Field

from gpuyard.cloud.people import People
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.rights import Verb, require
from gpuyard.portal.booking_documents import Line, Moment
from gpuyard.portal.bookings_api import Who, responses
from gpuyard.portal.doorman import Doorman
from gpuyard.portal.people import Visitor, refuse_lent
from gpuyard.portal.problems import Refusal
from gpuyard.portal.sources import Sources

TAG = "people"
EVERYBODY = "*"
User = Annotated[Line, Query(description="Name or id, * is everybody; for admins. Empty: who asks.")]


class SessionRow(BaseModel):
    """Somebody logged in with a browser."""

    user: str
    user_id: str
    begun: Moment
    expires: Moment = Field(description="When nobody uses it until then.")
    latest: Moment = Field(description="When it ends in any case.")
    current: bool = Field(description="The one that asks.")


class SessionList(BaseModel):
    sessions: list[SessionRow] = Field(description="By user and begin.")


class Ended(BaseModel):
    ended: int = Field(description="How many sessions.")


def install(app: FastAPI, sources: Sources, ledger: Ledger, doorman: Doorman) -> None:
    @app.get("/v1/sessions", tags=[TAG], responses=responses(headers=False))
    def list_sessions(who: Who, user: User = "") -> SessionList:
        """Who is logged in with a browser, and for how long."""
        current = who.session.digest if who.session else ""
        now = sources.now()
        found = [one for id in users_meant(who, user, doorman.people) for one in doorman.store.sessions(now, id)]
        return SessionList(
            sessions=[
                SessionRow(
                    user=one.user,
                    user_id=one.user_id,
                    begun=one.created,
                    expires=one.expires,
                    latest=one.latest,
                    current=one.digest == current,
                )
                for one in found
            ]
        )

    @app.delete("/v1/sessions", tags=[TAG], responses=responses(headers=False))
    def end_sessions(who: Who, user: User = "") -> Ended:
        """Log out everywhere: all sessions of somebody, also the one that asks. Their feeds are deleted, too."""
        refuse_lent(who)
        ids = users_meant(who, user, doorman.people)
        if ids == [""]:
            store, now = doorman.store, sources.now()
            ids = sorted({one.user_id for one in store.sessions(now)} | {one.owner for one in store.feeds(now)})
        ended = sum(doorman.end_all(id) for id in ids)
        if user:
            ledger.note(who.person, "sessions.end", user, f"{ended} ended")
        return Ended(ended=ended)


def users_meant(who: Visitor, user: str, people: People) -> list[str]:
    """Ids; [""] is everybody. Raises ForbiddenError unless it is an admin or who asks, Refusal for a user not known."""
    if user in ("", who.person.user_id, who.person.user):
        return [who.person.user_id]
    require(who.person, Verb.ADMINISTER)
    if user == EVERYBODY:
        return [""]
    if found := list(people.users(user)):
        return found
    raise Refusal(422, "no_such_user", f"Keystone knows no user {user}.")
