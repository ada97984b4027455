"""Makes and checks keys for ssh, in the format of OpenSSH."""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_public_key,
)

from gpuyard.model.errors import UsageError

MADE_KEY = "gpuyard-"
"""Beginning of the names of key pairs that were made for somebody, who was told to save them in a file of that name."""
MOST = 16_000
"""Characters of a public key: one of RSA with 16,384 bits has 2,800."""


@dataclass(frozen=True)
class KeyPair:
    public: str
    private: str = field(repr=False)
    """Unencrypted; shown once and kept nowhere."""


def new_key_pair(comment: str) -> KeyPair:
    """Return a new Ed25519 key pair, as ``ssh-keygen -t ed25519`` makes it. `comment`: at the end of the public key."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return KeyPair(f"{public} {comment}", private)


def checked_public_key(text: str) -> str:
    """Return a public key that somebody has pasted, on one line. Raises UsageError."""
    line = " ".join(text.split())
    if "PRIVATE KEY" in line:
        raise UsageError("This is a private key; keep it to yourself, and paste the public one: the file with .pub.")
    try:
        if len(line) > MOST:
            raise ValueError
        load_ssh_public_key(line.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(
            "This is no public key of OpenSSH; paste one line as in ~/.ssh/id_ed25519.pub: ssh-ed25519 AAAA…"
        ) from None
    return line
