"""The API against its own description: whatever is sent, nothing fails inside, and answers are as promised."""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from gpuyard.bookings.records import Query
from gpuyard.model.booking import Rules
from tests.support.ledgers import ADA, BOB, HOUR, NOON, ROOT, ask
from tests.support.people import token_of
from tests.support.portals import BookingPortal, booking_portal

with warnings.catch_warnings():  # its own dependencies warn when they are imported
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.core.result import Ok
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 20
"""For each endpoint and kind of input; there are some thirty endpoints."""


@pytest.fixture
def portal(tmp_path: Path) -> BookingPortal:
    """With something in it: bookings in several states, a hold, a feed."""
    portal = booking_portal(tmp_path, Rules(most_active=1000, approval=False))
    for hours in range(3):
        portal.ledger.create(ask(hours, 1), ROOT)
        portal.ledger.create(ask(5 * hours, 2, pool="t4", comment="thesis"), ADA)
    portal.ledger.create(ask(0, 1, gpus=2, pool="t4"), BOB, wait=True)
    portal.ledger.hold(["gpu-1/0000:c3:00.0"], NOON, NOON + HOUR, ROOT, "new fan")
    portal.ledger.upkeep.advance()
    return portal


def try_all(portal: BookingPortal, mode: GenerationMode) -> int:
    """Send what may and what may not be sent to every operation, as an admin; returns how many requests there were."""
    headers = token_of(ROOT)
    schema = schemathesis.openapi.from_asgi("/openapi.json", portal.app, headers=headers)
    ids = [booking.id for booking in portal.ledger.find(Query())]
    sent = 0
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        if operation.path == "/readyz":  # says by a 503 that the loops of this test do not run
            continue

        @settings(
            max_examples=EXAMPLES,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=mode), st.sampled_from([*ids, ""]))
        def send(case: schemathesis.Case[Any], id: str) -> None:
            nonlocal sent
            if id and "id" in case.path_parameters and "bookings" in case.operation.path:
                case.path_parameters["id"] = id  # of one that there is, for who can guess them
            case.call_and_validate(headers=headers, checks=CHECKS)
            sent += 1

        with suppress(Unsatisfiable):  # what takes no input cannot be given a wrong one
            send()
    return sent


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: str(mode.value))
def test_nothing_that_is_sent_makes_it_fail(portal: BookingPortal, mode: GenerationMode) -> None:
    assert try_all(portal, mode) > 100
