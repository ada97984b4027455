"""The tokens with which hosts and guests say how GPUs are. gpuyard keeps digests only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from secrets import token_bytes

PREFIXES = {"watch": "gyh_", "scrub": "gys_", "agent": "gya_", "enrol": "gye_"}
"""Purpose -> what its tokens begin with: a scanner of secrets knows them by it."""
SIZE = 32
"""Bytes of chance in one."""
LONGEST = 128
"""Characters; a text that is longer is none of ours."""


def new_token(purpose: str, random: Callable[[int], bytes] = token_bytes) -> tuple[str, str]:
    """(the token, its digest). The token is told once, and known to nobody but whom it was told."""
    text = PREFIXES[purpose] + random(SIZE).hex()
    return text, digest_of(text)


def digest_of(text: str) -> str:
    """By which the store knows a token. It is looked up by it, so that no comparison takes longer the nearer a guess
    is; a text that is too long has a digest that nothing has."""
    return hashlib.sha256(text[: LONGEST + 1].encode(errors="surrogatepass")).hexdigest()
