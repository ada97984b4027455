"""Makes the tokens with which hosts and guests report on GPUs, and their digests. gpuyard stores digests only."""

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
    """Return (the token, its digest). The token is shown once, and gpuyard does not keep it."""
    text = PREFIXES[purpose] + random(SIZE).hex()
    return text, digest_of(text)


def digest_of(text: str) -> str:
    """Return the SHA-256 by which the store finds a token. Tokens are found by digest, so that no comparison takes
    longer the nearer a guess is; a text that is too long has a digest that no token has."""
    return hashlib.sha256(text[: LONGEST + 1].encode(errors="surrogatepass")).hexdigest()
