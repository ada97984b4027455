"""Encrypts a person's Keystone token with the cookie of their session.

The key is derived from the cookie, a random number of 256 bits that only the browser has: the database has its digest.
So neither the database, nor a backup of it, nor the disk of the portal is enough to read a token, and a session that
is ended takes its token with it. HKDF separates this use of the cookie from its digest; Fernet encrypts and
authenticates.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PURPOSE = b"gpuyard: the Keystone token of a session"


def seal(token: str, cookie: str) -> str:
    """Encrypt a token with a cookie."""
    return _cipher(cookie).encrypt(token.encode()).decode()


def unseal(sealed: str, cookie: str) -> str:
    """Return the token that was sealed with the same cookie; empty when it was another one, or nothing was sealed."""
    try:
        return _cipher(cookie).decrypt(sealed.encode()).decode() if sealed else ""
    except InvalidToken:
        return ""


def _cipher(cookie: str) -> Fernet:
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=PURPOSE).derive(cookie.encode())
    return Fernet(urlsafe_b64encode(key))
