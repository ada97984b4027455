"""Nothing but the cookie opens the token of a session."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.web.sealed_tokens import seal, unseal
from gpuyard.web.sessions import digest_of, new_secret


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1))
def test_the_cookie_opens_it_and_its_digest_does_not(token: str) -> None:
    cookie = new_secret()
    sealed = seal(token, cookie)
    assert unseal(sealed, cookie) == token
    assert len(token) < 8 or token not in sealed
    for other in (new_secret(), digest_of(cookie), cookie[:-1], ""):
        assert unseal(sealed, other) == ""
    assert seal(token, cookie) != sealed


@given(st.text())
def test_what_is_no_sealed_token_opens_to_nothing(junk: str) -> None:
    assert unseal(junk, new_secret()) == ""
