"""The API of agents: everything that they have sent, for those whose servers they are in, and for admins."""

from __future__ import annotations

from fastapi import FastAPI
from pydantic import BaseModel, Field
from starlette.routing import Route

from gpuyard.health.controllers.agent_service import AgentService, CardUse
from gpuyard.health.web.agent_intake import AgentIntake
from gpuyard.model.world import Server
from gpuyard.web.api_requests import Who
from gpuyard.web.documents import Moment
from gpuyard.web.problems import documented, no_data_yet

SENT = (
    "Of each GPU that the server has: its UUID; percent of use and of memory in use; degrees C; W; uncorrectable ECC "
    "errors; whether row remappings failed; what slows it down. Numbers of Xid messages of the driver. The version of "
    "the driver, how many GPUs are on the server's bus, and an id of its boot. Nothing of processes, users or files."
)


class CardRow(BaseModel):
    """A GPU as its guest sees it; null: not known."""

    card: str = Field(description="UUID.", examples=["GPU-34d7319c-5b19-1e75-186d-c187099e4fe5"])
    gpu: str | None = Field(description="host/address, once that is known.")
    use: int | None = Field(description="Percent, of the last sample.")
    memory: int | None = Field(description="Percent.")
    temperature: int | None = Field(description="Degrees C.")
    power: int | None = Field(description="W.")
    ecc: int | None = Field(description="Uncorrectable errors since the driver was loaded.")
    idle_since: Moment | None = Field(description="It has done nothing since, as far as was heard without a gap.")
    minutes: list[int | None] = Field(description="Percent of use by the minute, of the last hour; the last is now.")


class AgentRow(BaseModel):
    server: str = Field(description="Id.")
    name: str
    heard: Moment | None = Field(description="null: nothing yet.")
    driver: str
    cards: list[CardRow]


class Agents(BaseModel):
    sent: str = Field(description="What agents send, in words.")
    agents: list[AgentRow] = Field(description="Of the project that is looked at; for admins, of all. By id of server.")


def install(app: FastAPI, service: AgentService, intake: AgentIntake) -> None:
    @app.get("/v1/agents", tags=["health"], responses=documented(401, 403, 503))
    def agents(visitor: Who) -> Agents:
        """What agents in servers with GPUs have said last."""
        snapshot = service.seen()
        if snapshot is None:
            raise no_data_yet()
        person, on = visitor.person, service.servers()
        mine = [
            server for id, server in sorted(snapshot.servers.items())
            if id in on and (person.admin or server.project_id == person.project_id)
        ]  # fmt: skip
        return Agents(sent=SENT, agents=[_row(service, server) for server in mine])

    # For the table of what is served: POST gets to these before (fast_path.py).
    for path, fast_path in intake.fast_paths.items():
        app.router.routes.insert(0, Route(path, fast_path, methods=["POST"]))


def _row(service: AgentService, server: Server) -> AgentRow:
    guest = service.guest(server.id)
    cards = list(guest.cards.items()) if guest else []
    return AgentRow(
        server=server.id, name=server.name, heard=guest.heard if guest else None, driver=guest.driver if guest else "",
        cards=[_card(service, card, card_use) for card, card_use in cards],
    )  # fmt: skip


def _card(service: AgentService, card: str, card_use: CardUse) -> CardRow:
    place, row = service.place(card), card_use.row
    return CardRow(
        card=card,
        gpu="/".join(place) if place else None,
        use=row.use if row else None,
        memory=row.memory if row else None,
        temperature=row.temperature if row else None,
        power=row.power if row else None,
        ecc=row.ecc if row else None,
        idle_since=card_use.idle.resting(service.now()),
        minutes=card_use.minutes.until(service.now()),
    )
