"""Endpoints that list sessions and end them: one's own, and for admins those of others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated

from fastapi import FastAPI, Query
from pydantic import BaseModel, Field

from gpuyard.model.booking import Person
from gpuyard.model.rights import Verb, require
from gpuyard.openstack.people import People
from gpuyard.web.api_requests import Who, responses
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.documents import Line, Moment
from gpuyard.web.people import Visitor, refuse_lent
from gpuyard.web.problems import Refusal

TAG = "people"
EVERYBODY = "*"
User = Annotated[Line, Query(description="Name or id, * is everybody; for admins. Empty: who asks.")]


Note = Callable[[Person, str, str, str], object]
"""Writes an audit entry: the person, what was done, to what, and how it ended."""


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


def install(app: FastAPI, now: Callable[[], datetime], note: Note, authenticator: Authenticator) -> None:
    """Add the endpoints. `note`: puts a line into the audit log."""

    @app.get("/v1/sessions", tags=[TAG], responses=responses(headers=False))
    def list_sessions(who: Who, user: User = "") -> SessionList:
        """Who is logged in with a browser, and for how long."""
        current = who.session.digest if who.session else ""
        sessions = [
            session
            for id in users_meant(who, user, authenticator.people)
            for session in authenticator.store.sessions(now(), id)
        ]
        return SessionList(
            sessions=[
                SessionRow(
                    user=session.user,
                    user_id=session.user_id,
                    begun=session.created,
                    expires=session.expires,
                    latest=session.latest,
                    current=session.digest == current,
                )
                for session in sessions
            ]
        )

    @app.delete("/v1/sessions", tags=[TAG], responses=responses(headers=False))
    def end_sessions(who: Who, user: User = "") -> Ended:
        """Log out everywhere: all sessions of somebody, also the one that asks. Their feeds are deleted, too."""
        refuse_lent(who)
        ids = users_meant(who, user, authenticator.people)
        if ids == [""]:
            store, moment = authenticator.store, now()
            ids = sorted(
                {session.user_id for session in store.sessions(moment)} | {feed.owner for feed in store.feeds(moment)}
            )
        ended = sum(authenticator.end_all(id) for id in ids)
        if user:
            note(who.person, "sessions.end", user, f"{ended} ended")
        return Ended(ended=ended)


def users_meant(who: Visitor, user: str, people: People) -> list[str]:
    """Return the ids of the users that are meant; [""] is everybody.

    Raises ForbiddenError when others are meant and the visitor is no admin, Refusal for a user not known.
    """
    if user in ("", who.person.user_id, who.person.user):
        return [who.person.user_id]
    require(who.person, Verb.ADMINISTER)
    if user == EVERYBODY:
        return [""]
    if ids := list(people.users(user)):
        return ids
    raise Refusal(422, "no_such_user", f"Keystone knows no user {user}.")
