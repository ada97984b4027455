"""Keys for ssh: made as ssh-keygen makes them, and pasted ones checked."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.model.errors import UsageError
from gpuyard.servers.keys import checked_public_key, new_key_pair


def test_openssh_takes_a_new_key(tmp_path: Path) -> None:
    pair = new_key_pair("ada")
    file = tmp_path / "key"
    file.write_text(pair.private)
    file.chmod(0o600)
    public = subprocess.run(["ssh-keygen", "-y", "-f", file], check=True, capture_output=True, text=True).stdout
    assert public.split()[:2] == pair.public.split()[:2]
    assert pair.private not in repr(pair)


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_keys_of_ssh_keygen_are_taken(tmp_path: Path, kind: str) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", tmp_path / "key"], check=True)
    public = (tmp_path / "key.pub").read_text()
    assert checked_public_key(f"  {public}\n") == public.strip()


def test_a_private_key_is_refused() -> None:
    with pytest.raises(UsageError, match="keep it to yourself"):
        checked_public_key(new_key_pair("ada").private)


@given(st.text() | st.text().map("ssh-ed25519 {}".format) | st.binary().map(lambda junk: f"ssh-rsa {junk.hex()}"))
def test_everything_else_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(UsageError, match="public"):
        checked_public_key(text)
