"""Collects the problems of one run of a loop: each part is isolated, so that the others are done all the same."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpuyard.model.errors import GpuyardError

LOG = logging.getLogger(__name__)


@dataclass
class RunProblems:
    """The problems of one run."""

    known: Collection[str] = ()
    """`odd` of the run before."""
    texts: list[str] = field(default_factory=list)
    odd: set[str] = field(default_factory=set)
    """Texts of unexpected errors."""

    @contextmanager
    def apart(self, what: str, *passes: type[Exception]) -> Iterator[None]:
        """Record an error of the block, and go on with what comes after it; but let an error that `passes` through."""
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
