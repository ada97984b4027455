"""Prices and budgets as the site file spells them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from gpuyard.site.accounting_problems import accounting_problems
from gpuyard.site.accounting_rules import BudgetRules, ExternalEnforcement, SiteAccounting, price_at
from gpuyard.site.schema import Site

ACCOUNTING = {
    "currency": "CHF",
    "tariffs": {"weekend": {"days": ["sat", "sun"]}, "night": {"hours": ["20:00-08:00"]}},
    "budget": {"gpu_hours": 100, "carry_over": 20},
}


def with_accounting(accounting: dict[str, Any] | None = ACCOUNTING, price: Any = None, **project: Any) -> Site:
    document = {
        "site": "test",
        "hosts": {"gpu-server": {"recording": "gpu-server.json"}},
        "pools": {"v100": {"models": ["10de:1db4"], "price": price}},
        "projects": {"physics": project},
        "booking": {},
    }
    return Site.model_validate({**document, "accounting": accounting})


def test_a_project_has_its_own_budget_or_that_of_the_site() -> None:
    site = with_accounting(budget={"gpu_hours": 5, "half_life": "14 days"})
    assert site.budget("physics") == BudgetRules.model_validate({"gpu_hours": 5, "half_life": "14 days"})
    assert site.budget("chemistry") == BudgetRules.model_validate({"gpu_hours": 100, "carry_over": 20})
    assert with_accounting(None).budget("physics") is None


def test_a_pool_has_one_price_or_one_for_each_tariff() -> None:
    assert price_at(Decimal("1.2"), "night") == Decimal("1.2")
    prices = {"standard": Decimal(2), "night": Decimal("0.5")}
    assert [price_at(prices, name) for name in ("night", "weekend", "standard")] == [Decimal("0.5"), 2, 2]
    assert price_at({"night": Decimal(1)}, "standard") is None
    assert price_at(None, "standard") is None
    stated = next(iter(with_accounting(price=0.1).pools.values())).price
    assert stated == Decimal("0.1")


def test_prices_and_budgets_need_accounting() -> None:
    problems = [
        str(problem) for problem in accounting_problems(with_accounting(None, price=1, budget={"gpu_hours": 5}))
    ]
    assert len(problems) == 2
    assert all("add 'accounting: {}'" in text for text in problems)


def test_a_price_names_a_tariff_of_the_site() -> None:
    (problem,) = accounting_problems(with_accounting(price={"nacht": 1, "standard": 2}))
    assert "unknown tariff 'nacht'; the site has weekend, night, standard" in str(problem)
    external = {**ACCOUNTING, "external": {"url": "https://credits.example.org/v1", "classes": {"none": "X"}}}
    (problem,) = accounting_problems(with_accounting(external))
    assert "unknown pool 'none'" in str(problem)
    assert not list(accounting_problems(with_accounting(price={"night": 1})))


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"curency": "EUR"}, "Extra inputs"),
        ({"currency": "euro"}, "should match pattern"),
        ({"tariffs": {"standard": {"days": ["sat"]}}}, "is the tariff of the rest of the time"),
        ({"tariffs": {"all": {}}}, "needs 'days' or 'hours'"),
        ({"tariffs": {"night": {"hours": ["8-20"]}}}, "write it as in '22:00-06:00'"),
        ({"budget": {"gpu_hours": -1}}, "greater than or equal to 0"),
        ({"budget": {"gpu_hours": 1, "half_life": "1 day", "carry_over": 5}}, "there are no periods"),
        ({"budget": {"gpu_hours": 1, "half_life": "1 min"}}, "an hour or more"),
        ({"warn_at": [0]}, "greater than or equal to 1"),
        ({"external": {"url": "http://credits.example.org/v1"}}, "unencrypted; write https://"),
        ({"external": {"url": "https://a:b@credits.example.org/v1"}}, "is not the address of a service"),
        ({"external": {"url": "https://credits.example.org/v1", "token": "x"}}, "Extra inputs"),
    ],
)
def test_what_cannot_be_is_said(stated: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        SiteAccounting.model_validate(stated)


@pytest.mark.parametrize("price", [-1, "nan", "inf", 1e300, 0.0000001])
def test_a_price_is_a_price(price: Any) -> None:
    with pytest.raises(ValidationError):
        with_accounting(price=price)


def test_a_service_on_the_same_machine_needs_no_encryption() -> None:
    assert ExternalEnforcement.model_validate({"url": "http://127.0.0.1:8077/consumer"}).outage == "refuse"
