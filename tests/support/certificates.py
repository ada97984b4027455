"""A certificate that is its own authority, for servers of tests that speak TLS."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


@dataclass(frozen=True)
class Certificate:
    """For some addresses and names."""

    authority: Path
    """What clients are to trust, as PEM."""
    key: Path

    def context(self) -> ssl.SSLContext:
        """A server's."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.authority, self.key)
        return context


def certificate(folder: Path, *addresses: str, names: Sequence[str] = ("localhost",)) -> Certificate:
    """For these names and IP addresses; it is ``ca.pem`` in the folder."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gpuyard's tests")])
    # OpenSSL asks its own clock, whatever now is for a test.
    begin, end = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
    alternative_names = [
        *(x509.DNSName(name) for name in names),
        *(x509.IPAddress(ip_address(address)) for address in addresses),
    ]
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 5, begin, end)
        .add_extension(x509.SubjectAlternativeName(alternative_names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate = Certificate(folder / "ca.pem", folder / "key.pem")
    certificate.authority.write_bytes(made.public_bytes(Encoding.PEM))
    certificate.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate
