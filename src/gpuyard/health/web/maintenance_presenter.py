"""Turns maintenances of hosts into the cards on the page of health, with words and buttons. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gpuyard.health.maintenance import MaintenanceState
from gpuyard.health.web.health_presenter import StepButton
from gpuyard.health.web.maintenance_documents import MaintenanceBooking, MaintenanceRow, MaintenanceServer
from gpuyard.inventory.web.presenter import Since, since
from gpuyard.model.booking import BookingKind

COLOURS = {
    MaintenanceState.PLANNED: "booked",
    MaintenanceState.DRAINING: "held",
    MaintenanceState.IN_WORK: "lost",
    MaintenanceState.CHECKING: "stranded",
    MaintenanceState.BACK: "free",
    MaintenanceState.CANCELLED: "free",
}
"""State of a GPU on the map whose colour a maintenance has."""
MEANINGS = {
    MaintenanceState.PLANNED: "Nothing new is booked there in its time.",
    MaintenanceState.DRAINING: "No server is started there, and work waits until those that are there have left.",
    MaintenanceState.IN_WORK: "No server is there but those that may go down: it may be worked on.",
    MaintenanceState.CHECKING: "It is given back when it was heard of and its GPUs are well.",
    MaintenanceState.BACK: "",
    MaintenanceState.CANCELLED: "",
}
STEPS = {
    "start": ("Begin…", "What is to be done? Nobody new gets a GPU of the host from now on.", "Begin"),
    "done": ("Done…", "What was done? The host is checked then.", "It is done"),
    "cancel": ("Cancel…", "Why is it not needed?", "It is not needed"),
}
"""Step -> its button, what is asked then, and the yes. Another end is said on the command line."""
AGAIN = {
    "start": ("Work on it again…", "What is still to be done?", "Work on it again"),
    "done": ("Look again…", "What is other than before? The host is checked anew.", "Look again"),
}
"""The same of a host that is being checked."""


@dataclass(frozen=True)
class MaintenanceCard:
    api: str
    """Its address in the API, relative."""
    name: str
    """Its host."""
    state: str
    colour: str
    meaning: str
    why: str
    by: str
    start: Since
    end: Since
    used_by: Sequence[str]
    problems: Sequence[str]
    buttons: Sequence[StepButton]

    def for_all(self) -> MaintenanceCard:
        """Return the card for people who are no admins: when and why."""
        return replace(self, by="", used_by=(), problems=(), buttons=())


def maintenance_card(row: MaintenanceRow, now: datetime) -> MaintenanceCard:
    return MaintenanceCard(
        api=f"v1/maintenances/{row.id}",
        name=row.host,
        state=row.state.value,
        colour=COLOURS[row.state],
        meaning=MEANINGS[row.state],
        why=row.comment,
        by=row.by,
        start=since(row.start, now),
        end=since(row.end, now),
        used_by=[
            *(_server(server) for server in row.servers),
            *(_booking(booking, now) for booking in row.bookings),
        ],
        problems=row.problems,
        buttons=[_button(step, again=row.state is MaintenanceState.CHECKING) for step in row.may if step in STEPS],
    )


def _server(server: MaintenanceServer) -> str:
    owner = f" of {server.user} ({server.project})" if server.user else ""
    return f"server {server.name}{owner}{', which may go down' if server.may_go_down else ''}"


def _booking(booking: MaintenanceBooking, now: datetime) -> str:
    what = "runner" if booking.kind is BookingKind.RUNNER else f"booking {booking.id} of"
    return f"{what} {booking.user} until {since(booking.end, now).exact}"


def _button(step: str, *, again: bool) -> StepButton:
    text, question, yes = (STEPS | AGAIN if again else STEPS)[step]
    return StepButton(step, "comment", text, question, yes, step == "cancel")
