"""Checks ``accounting``, prices and budgets of a site beyond what the schema can express."""

from __future__ import annotations

from collections.abc import Iterable

from gpuyard.site.problems import Place, Problem
from gpuyard.site.schema import Site
from gpuyard.site.tariff_clock import STANDARD


def accounting_problems(site: Site) -> Iterable[Problem]:
    """Yield every problem of a site's accounting."""
    accounting = site.accounting
    if accounting is None:
        yield from _orphans(site)
        return
    if site.booking is None:
        yield Problem(("accounting",), "use is recorded with bookings, which the site has not; add 'booking: {}'")
    known_tariffs = (*accounting.tariffs, STANDARD)
    for name, pool in site.pools.items():
        for tariff in pool.price if isinstance(pool.price, dict) else ():
            if tariff not in known_tariffs:
                place: Place = ("pools", name, "price", tariff)
                yield Problem(place, f"unknown tariff {tariff!r}; the site has {', '.join(known_tariffs)}")
    for pool_name in accounting.external.classes if accounting.external else ():
        if pool_name not in site.pools:
            place = ("accounting", "external", "classes", pool_name)
            yield Problem(place, f"unknown pool {pool_name!r}; the site has {', '.join(site.pools)}")


def _orphans(site: Site) -> Iterable[Problem]:
    """Prices and budgets where nobody reckons."""
    states: list[Place] = [("pools", name, "price") for name, pool in site.pools.items() if pool.price is not None]
    states += [("projects", name, "budget") for name, project in site.projects.items() if project.budget]
    for place in states:
        yield Problem(place, "the site does not reckon with it; add 'accounting: {}' to the site file")
