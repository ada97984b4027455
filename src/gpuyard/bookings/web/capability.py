"""The part of the portal for bookings: their API, that of operators, the calendar, feeds, pages and error handlers."""

from __future__ import annotations

from fastapi import FastAPI

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.web import bookings_api, calendar_api, calendar_pages, error_responses, feeds, operators_api
from gpuyard.bookings.web.booking_documents import BookingRows
from gpuyard.bookings.web.bookings_api import Report
from gpuyard.inventory.web.inventory_context import InventoryContext
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.capability import Capability


class BookingsCapability(Capability):
    tags = ("bookings", "calendar", "feeds", "people")

    def __init__(
        self,
        context: InventoryContext,
        ledger: Ledger,
        authenticator: Authenticator,
        rows: BookingRows,
        report: Report | None,
    ) -> None:
        """`report` takes what people report of their GPUs as they end a booking; None where nobody follows it."""
        self._context, self._ledger, self._authenticator = context, ledger, authenticator
        self._rows, self._report = rows, report

    def install(self, app: FastAPI) -> None:
        context, ledger, rows = self._context, self._ledger, self._rows
        bookings_api.install(app, ledger, self._authenticator, rows, self._report)
        operators_api.install(app, ledger, rows)
        calendar_api.install(app, context, ledger, self._authenticator, rows)
        feeds.install(app, context, ledger, self._authenticator)
        calendar_pages.install(app, context, list(ledger.book.pools))
        error_responses.install(app, rows)
