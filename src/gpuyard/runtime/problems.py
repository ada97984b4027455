"""What goes wrong in one run of a loop: each part apart, so that the others are looked at all the same."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpuyard.model.errors import GpuyardError

LOG = logging.getLogger(__name__)


@dataclass
class RunProblems:
    """Of one run."""

    known: Collection[str] = ()
    """What `odd` was in the run before."""
    texts: list[str] = field(default_factory=list)
    odd: set[str] = field(default_factory=set)
    """Those that nobody has thought of."""

    @contextmanager
    def apart(self, what: str, *passes: type[Exception]) -> Iterator[None]:
        """An error in here is written down, and what comes after it is done all the same; but one that `passes`."""
        try:
            yield
        except passes:
            raise
        except GpuyardError as problem:
            LOG.debug("%s", what, exc_info=True)
            self.texts.append(f"{what}: {problem}")
        except Exception as problem:  # a mistake of ours: it may concern one thing only, and there are others
            text = f"{what}: {type(problem).__name__}: {problem}"
            self.texts.append(text)
            self.odd.add(text)
            if text not in self.known:  # it comes at every run, and is told once with where it came from
                LOG.exception("%s", text)
