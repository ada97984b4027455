"""Schema of ``accounting`` in ``site.yaml``, and of prices and budgets under pools and projects."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from typing import Annotated, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema, model_validator

from gpuyard.site.booking_rules import Quiet, SomeTime
from gpuyard.site.strict import Strict
from gpuyard.site.tariff_clock import STANDARD, Tariff, TariffClock

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
LOOPBACK = ("localhost", "127.0.0.1", "::1")

TariffName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=40)]
Amount = Annotated[
    Decimal,
    Field(ge=0, le=10**9, decimal_places=6, allow_inf_nan=False),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": 10**9}),
]
GpuHours = Annotated[int, Field(ge=0, le=10**9, strict=True)]
Price = Amount | dict[TariffName, Amount]
PRICE = Field(
    None,
    description="Of a GPU for an hour, in the currency of 'accounting': an amount, or one for each tariff; "
    f"'{STANDARD}' is that of the rest of the time.",
)


class TariffRules(Strict):
    """A part of the week, by the clocks of the site's time zone."""

    days: tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...] = Field(
        (), description="On these days; every day when empty. What is after midnight is of the following day."
    )
    hours: tuple[Quiet, ...] = Field(
        (), description="In these parts of the day, as in ['20:00-08:00']; all of it when empty."
    )

    @model_validator(mode="after")
    def _some_part(self) -> TariffRules:
        if not self.days and not self.hours:
            raise ValueError(f"a tariff needs 'days' or 'hours'; what holds all week is '{STANDARD}'")
        return self

    def tariff(self, name: str) -> Tariff:
        days = frozenset(map(DAYS.index, self.days)) or frozenset(range(7))
        return Tariff(name, days, tuple(self.hours))


class BudgetRules(Strict):
    """GPU-hours that a project may use and book, of all pools together."""

    gpu_hours: GpuHours = Field(description="So many a period; with 'half_life' so many at any time.")
    every: Literal["day", "week", "month", "quarter", "year"] = Field(
        "month", description="The period, by the clocks of the site's time zone; weeks begin on Monday."
    )
    carry_over: GpuHours = Field(
        0, description="Of what is left at the end of a period, at most so many GPU-hours are added to the next one."
    )
    half_life: SomeTime | None = Field(
        None, description="No periods: what was used counts half after this time, a quarter after twice of it ..."
    )
    since: date | None = Field(
        None, description="What was used before this day does not count, and nothing of it is carried over."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> BudgetRules:
        if self.half_life is not None and {"every", "carry_over"} & self.model_fields_set:
            raise ValueError("with 'half_life' there are no periods; take 'every' and 'carry_over' out, or that")
        if self.half_life is not None and self.half_life < timedelta(hours=1):
            raise ValueError("a half-life is an hour or more")
        return self


def _address(value: str) -> str:
    parts = urlsplit(value)
    if not parts.hostname or parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(f"{value!r} is not the address of a service; write one as in 'https://credits.example.org/v1'")
    if parts.scheme != "https" and parts.hostname not in LOOPBACK:
        raise ValueError(f"the token would go to {parts.hostname} unencrypted; write https://")
    return value


class ExternalEnforcement(Strict):
    """A service that says whether a booking may be made, by the protocol of Blazar's external service filter."""

    url: Annotated[str, StringConstraints(pattern=r"^https?://", max_length=1000), AfterValidator(_address)] = Field(
        description="What '/check-create', '/check-update' and '/on-end' follow: 'https://host/v1', or "
        "'https://host/consumer' of coral-credits."
    )
    service: Literal["blazar", "coral-credits"] = Field(
        "blazar",
        description="'blazar': as Blazar asks any service. 'coral-credits': also told of what was made and changed, "
        "with the resource hours, as StackHPC's Blazar does.",
    )
    token_file: str | None = Field(
        None,
        description="File that has the service's token alone; read anew each time. Relative to where gpuyard runs.",
    )
    token_variable: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")] = Field(
        "GPUYARD_ENFORCEMENT_TOKEN", description="Environment variable that has the token, where there is no file."
    )
    timeout: Annotated[int, Field(ge=1, le=60, strict=True)] = Field(
        5, description="Seconds that one question may take in all."
    )
    outage: Literal["refuse", "allow"] = Field(
        "refuse", description="What becomes of bookings when the service does not answer, or not as the protocol says."
    )
    region: str = Field("RegionOne", description="Name of the region that the service is told.")
    classes: dict[str, str] = Field(
        default_factory=dict,
        description="Pool -> resource class of the service, where that is not CUSTOM_GPU_POOL (coral-credits).",
    )


class SiteAccounting(Strict):
    """What use costs, and how much of it projects may have."""

    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$|^$")] = Field(
        "EUR", description="Of prices; empty where they are points."
    )
    charge: Literal["used", "booked"] = Field(
        "used",
        description="What is priced and taken off budgets: GPUs while a server has them; or also while they are kept "
        "for a booking without one.",
    )
    tariffs: dict[TariffName, TariffRules] = Field(
        default_factory=dict, description="Parts of the week that have other prices. Of several the first holds."
    )
    budget: BudgetRules | None = Field(None, description="Of every project that states none.")
    warn_at: tuple[Annotated[int, Field(ge=1, le=1000, strict=True)], ...] = Field(
        (80, 100), description="Percent of a budget at which people are told, once a period each."
    )
    tell: tuple[Annotated[str, StringConstraints(pattern=r"^[^@\s]+@[^@\s]+$", max_length=254)], ...] = Field(
        (), description="Addresses that get the warnings of all projects and the monthly report."
    )
    external: ExternalEnforcement | None = None

    @model_validator(mode="after")
    def _standard_is_ours(self) -> SiteAccounting:
        if STANDARD in self.tariffs:
            raise ValueError(f"'{STANDARD}' is the tariff of the rest of the time; give this one another name")
        return self

    def clock(self, zone: ZoneInfo) -> TariffClock:
        """Its tariffs on the clocks of a zone."""
        return TariffClock(zone, [rules.tariff(name) for name, rules in self.tariffs.items()])


def price_at(price: Price | None, tariff: str) -> Decimal | None:
    """Return the price of a GPU-hour in a tariff; None where the pool has no price then."""
    return price.get(tariff, price.get(STANDARD)) if isinstance(price, dict) else price
