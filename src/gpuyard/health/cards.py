"""Locates cards: joins UUIDs that guests see with the host addresses of the GPUs that their servers have. Pure.

A guest does not know the address of its GPU on the host, and Placement does not know UUIDs. But each card that a server
sees is in one of the places that the server has. So over several servers the possible places of a card become fewer,
and a place whose card is known is no other card's. Once a card has one place left, that holds until the card turns up
where it cannot be: it was moved or replaced, or an agent lies. That is a contradiction, and the latest sighting counts,
unless another server has reported the card within the last 15 minutes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

STILL = timedelta(minutes=15)
"""For so long after it was seen a card cannot be elsewhere: a server is shut off and another one booted first."""

Place = tuple[str, str]
"""Host and address."""


@dataclass(frozen=True)
class CardSeen:
    """A card, and the places that it may be in."""

    card: str
    places: frozenset[Place]
    seen: datetime
    server: str
    """The server that saw it last."""

    @property
    def place(self) -> Place | None:
        """The card's place; None while more than one is possible."""
        return next(iter(self.places)) if len(self.places) == 1 else None


@dataclass(frozen=True)
class Contradiction:
    card: str
    places: frozenset[Place]
    """The places for which the reports cannot all be right."""
    why: str


def sight(
    known: Mapping[str, CardSeen], server: str, has: Collection[Place], sees: Iterable[str], now: datetime
) -> tuple[dict[str, CardSeen], list[Contradiction]]:
    """Return the cards whose places change when a server that `has` these GPUs `sees` these cards, and contradictions.
    A card whose `places` are empty is to be forgotten: another one is where it was."""
    here, cards = frozenset(has), sorted(set(sees) - {""})
    if not here or len(cards) > len(here):
        return {}, [_too_many(server, here, cards)] if here and cards else []
    found: dict[str, CardSeen] = {}
    wrong: list[Contradiction] = []
    for card in cards:
        before = known.get(card)
        places = before.places & here if before else here
        if before and not places:
            was = _words(before.places)
            if before.server != server and now - before.seen < STILL:
                why = f"server {server} says that it has card {card}, which server {before.server} has, at {was}"
                wrong.append(Contradiction(card, before.places | here, why))
                continue
            places = here
            wrong.append(
                Contradiction(card, before.places | here, f"card {card} was at {was} and is at {_words(here)}")
            )
        found[card] = CardSeen(card, places, now, server)
    for card, one in known.items():
        if one.server == server and one.place is None and card not in cards:
            found[card] = replace(one, places=frozenset())  # so an agent cannot make up cards without end
    for card, one in _displaced(known, found, here, cards).items():
        wrong.append(
            Contradiction(card, one.places, f"card {card} is not at {_words(one.places)} any more: another one is")
        )
        found[card] = replace(one, places=frozenset())
    changed = _narrowed(known, found)
    return {card: one for card, one in changed.items() if known.get(card) != one}, wrong


def _displaced(
    known: Mapping[str, CardSeen], found: Mapping[str, CardSeen], here: frozenset[Place], cards: Collection[str]
) -> dict[str, CardSeen]:
    """Cards that were in these places and are not: the server sees as many others as it has places."""
    if len(found) < len(here):
        return {}
    return {
        card: one for card, one in known.items() if card not in cards and one.places and one.places <= here
    }  # fmt: skip


def _narrowed(known: Mapping[str, CardSeen], found: Mapping[str, CardSeen]) -> dict[str, CardSeen]:
    """What changes when a place whose card is known is no other card's: again and again, until nothing more follows."""
    cards = {**known, **found}
    several = {card for card, one in cards.items() if len(one.places) > 1}
    taken = {card.place for card in cards.values() if card.place}
    changed = dict(found)
    news: set[Place | None] = {one.place for one in found.values()}
    todo = several & found.keys()
    while True:
        todo |= {card for card in several if not news.isdisjoint(cards[card].places)}
        if not todo:
            return changed
        news = set()
        for card in sorted(todo):
            one = cards[card]
            left = one.places - taken
            if left and left != one.places:
                cards[card] = changed[card] = replace(one, places=left)
            if len(left) == 1:
                several.discard(card)
                news |= left
                taken |= left
        todo = set()


def _too_many(server: str, here: frozenset[Place], cards: Collection[str]) -> Contradiction:
    return Contradiction("", here, f"server {server} says that it has {len(cards)} cards, and has {len(here)} GPUs")


def _words(places: Iterable[Place]) -> str:
    return " or ".join(sorted("/".join(place) for place in places))
