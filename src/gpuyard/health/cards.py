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


def locate_cards(
    known_cards: Mapping[str, CardSeen], server: str, has: Collection[Place], sees: Iterable[str], now: datetime
) -> tuple[dict[str, CardSeen], list[Contradiction]]:
    """Return the cards whose places change when a server that `has` these GPUs `sees` these cards, and contradictions.
    A card whose `places` are empty is to be forgotten: another one is where it was."""
    own_places, cards = frozenset(has), sorted(set(sees) - {""})
    if not own_places or len(cards) > len(own_places):
        return {}, [_too_many(server, own_places, cards)] if own_places and cards else []
    sightings: dict[str, CardSeen] = {}
    wrong: list[Contradiction] = []
    for card in cards:
        before = known_cards.get(card)
        places = before.places & own_places if before else own_places
        if before and not places:
            was = _words(before.places)
            if before.server != server and now - before.seen < STILL:
                why = f"server {server} says that it has card {card}, which server {before.server} has, at {was}"
                wrong.append(Contradiction(card, before.places | own_places, why))
                continue
            places = own_places
            wrong.append(
                Contradiction(
                    card, before.places | own_places, f"card {card} was at {was} and is at {_words(own_places)}"
                )
            )
        sightings[card] = CardSeen(card, places, now, server)
    for card, sighting in known_cards.items():
        if sighting.server == server and sighting.place is None and card not in cards:
            sightings[card] = replace(sighting, places=frozenset())  # so an agent cannot make up cards without end
    for card, sighting in _displaced(known_cards, sightings, own_places, cards).items():
        wrong.append(
            Contradiction(
                card, sighting.places, f"card {card} is not at {_words(sighting.places)} any more: another one is"
            )
        )
        sightings[card] = replace(sighting, places=frozenset())
    changed = _narrowed(known_cards, sightings)
    return {card: update for card, update in changed.items() if known_cards.get(card) != update}, wrong


def _displaced(
    known_cards: Mapping[str, CardSeen],
    sightings: Mapping[str, CardSeen],
    own_places: frozenset[Place],
    cards: Collection[str],
) -> dict[str, CardSeen]:
    """Cards that were in these places and are not: the server sees as many others as it has places."""
    if len(sightings) < len(own_places):
        return {}
    return {
        card: sighting for card, sighting in known_cards.items()
        if card not in cards and sighting.places and sighting.places <= own_places
    }  # fmt: skip


def _narrowed(known_cards: Mapping[str, CardSeen], sightings: Mapping[str, CardSeen]) -> dict[str, CardSeen]:
    """What changes when a place whose card is known is no other card's: again and again, until nothing more follows."""
    cards = {**known_cards, **sightings}
    several = {card for card, entry in cards.items() if len(entry.places) > 1}
    taken = {card.place for card in cards.values() if card.place}
    changed = dict(sightings)
    news: set[Place | None] = {entry.place for entry in sightings.values()}
    todo = several & sightings.keys()
    while True:
        todo |= {card for card in several if not news.isdisjoint(cards[card].places)}
        if not todo:
            return changed
        news = set()
        for card in sorted(todo):
            sighting = cards[card]
            left = sighting.places - taken
            if left and left != sighting.places:
                cards[card] = changed[card] = replace(sighting, places=left)
            if len(left) == 1:
                several.discard(card)
                news |= left
                taken |= left
        todo = set()


def _too_many(server: str, own_places: frozenset[Place], cards: Collection[str]) -> Contradiction:
    return Contradiction(
        "", own_places, f"server {server} says that it has {len(cards)} cards, and has {len(own_places)} GPUs"
    )


def _words(places: Iterable[Place]) -> str:
    return " or ".join(sorted("/".join(place) for place in places))
