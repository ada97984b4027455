"""Passwords and keys of a lab: random, made once, kept in files that only their owner may read."""

from __future__ import annotations

import base64
import json
import secrets
from pathlib import Path

from gpuyard_lab.files import private_folder, write_json, write_private
from gpuyard_lab.settings import Lab

SERVICE_USERS = ("placement", "glance", "neutron", "nova")
ADMIN, DEMO = "admin", "demo"


def passwords(lab: Lab) -> dict[str, str]:
    """Return the password of each user; missing ones are made and kept."""
    passwords_by_user: dict[str, str] = json.loads(lab.secrets_file.read_text()) if lab.secrets_file.exists() else {}
    missing = {ADMIN, DEMO, *SERVICE_USERS} - set(passwords_by_user)
    if missing:
        passwords_by_user = {**passwords_by_user, **{user: secrets.token_urlsafe(24) for user in sorted(missing)}}
        write_json(lab.secrets_file, passwords_by_user)
    return passwords_by_user


def key_repositories(lab: Lab) -> None:
    """Make the keys that Keystone encrypts tokens and credentials with; both of its tools are replaced by 32 random
    bytes.

    Kept from start to start: with new keys, what is encrypted in the database could not be read any more.
    """
    for folder in (fernet_keys(lab), credential_keys(lab)):
        private_folder(folder)
        for name in ("0", "1"):  # the staged key and the primary
            if not (folder / name).exists():
                write_private(folder / name, base64.urlsafe_b64encode(secrets.token_bytes(32)))


def fernet_keys(lab: Lab) -> Path:
    return lab.data / "keystone" / "fernet-keys"


def credential_keys(lab: Lab) -> Path:
    return lab.data / "keystone" / "credential-keys"
