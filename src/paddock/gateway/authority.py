"""The certificate authority of one sandbox.

With it the gateway can inspect TLS of clients inside that trust it.

Its key is only in the memory of processes with this object. It is never on a disk or in a sandbox.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

MOST_CONTEXTS = 256
_BEGIN, _END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2049, 12, 31, tzinfo=UTC)
"""Validity of the authority, and the begin of its certificates.

Clocks inside may be wrong, and it ends with its sandbox.
"""
_LEAF_LIFE = timedelta(days=397)
"""Some clients take no certificate that lives longer."""


class Authority:
    """`certificate` and `key` are PEM. Most sandboxes need no leaf, so the first one loads them."""

    def __init__(self, certificate: bytes, key: bytes) -> None:
        self.certificate, self.key = certificate, key
        self.context = lru_cache(MOST_CONTEXTS)(self._context)

    @cached_property
    def _loaded(self) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        loaded = serialization.load_pem_private_key(self.key, None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError("the key of an authority is one on an elliptic curve")
        return loaded, x509.load_pem_x509_certificate(self.certificate)

    @cached_property
    def _leaf_key(self) -> ec.EllipticCurvePrivateKey:
        return ec.generate_private_key(ec.SECP256R1())

    @classmethod
    def make(cls, owner: str) -> Authority:
        """Make a new authority with the name of its owner."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"paddock {owner}"[:64])])
        certificate = (
            _builder(name, name, key, _BEGIN, _END)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))

    def leaf(self, host: str) -> bytes:
        """Return a certificate for `host` as PEM. All of them have the same key."""
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
        recent = datetime.now(UTC) - timedelta(days=7)
        key, issuer = self._loaded
        begin = max(_BEGIN, issuer.not_valid_before_utc, recent)
        return (
            _builder(name, issuer.subject, self._leaf_key, begin, recent + _LEAF_LIFE)
            .add_extension(x509.SubjectAlternativeName([_general(host)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        ).public_bytes(serialization.Encoding.PEM)

    def _context(self, host: str, *, h2: bool = False) -> ssl.SSLContext:
        """Return the context of a server that is `host`, a name or an address. `h2`: it offers HTTP/2 first."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 1
        context.set_alpn_protocols(["http/1.1", "h2"] if h2 else ["http/1.1"])
        # `ssl` reads files only. This one has no name and isn't on a disk.
        fd = os.memfd_create("leaf", os.MFD_CLOEXEC)
        try:
            os.write(fd, self.leaf(host) + _pem(self._leaf_key))
            context.load_cert_chain(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
        return context


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return builder.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
