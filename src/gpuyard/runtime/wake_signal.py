"""Signals by which the parts of a process wake each other's control loops.

The part that sends a signal makes it, so it is there before those who listen, and no part has to know who they are.
A signal carries a reason for people and nothing else: a loop reads what has changed from the store, and a signal that
nobody hears costs time, never truth.
"""

from __future__ import annotations

from collections.abc import Callable


class WakeSignal:
    """An event that is sent by calling it with a reason. Each listener is called in the sender's thread, in the order
    in which they came."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[str], None]] = []

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the reason each time that the signal is sent from now on."""
        self._listeners.append(listener)

    def __call__(self, reason: str) -> None:
        for listener in self._listeners:
            listener(reason)
