"""Certificates and keys of a federation: one certificate authority, one key pair a SuperNode.

Everything lies in one directory. What a device needs is in its own subdirectory, which is all that
goes to the device; ``ca.key`` is needed only to make further certificates and should be kept away.
"""

import datetime
import ipaddress
import shutil
from collections.abc import Sequence
from pathlib import Path

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

YEARS = 2
FEDERATION = "federation"
"""Directory of keys and data beside the compose file."""
CONNECTION = "deployment"
"""Name of the SuperLink connection in Flower's configuration."""


def make_federation(root: Path, hosts: Sequence[str], nodes: int, address: str) -> None:
    """Write all certificates and keys.

    Parameters
    ----------
    root : Path
        Must not exist, or be empty: keys in use are not replaced.
    hosts : sequence of str
        Names and addresses under which SuperNodes and users reach the SuperLink. 127.0.0.1 is
        always added: the ServerApp, beside the SuperLink, uses it.
    nodes : int
        Number of SuperNodes.
    address : str
        HOST:PORT of the SuperLink for ``flwr run``.

    Raises
    ------
    ValueError
        If there are files already, or ``nodes`` is not positive.
    """
    if nodes < 1:
        raise ValueError(f"--nodes {nodes}: must be >= 1")
    if root.exists() and any(root.iterdir()):
        raise ValueError(f"{root}: is not empty; keys in use are not replaced, remove it first")
    ca_key, ca = _authority()
    key, certificate = _server(ca_key, ca, list(dict.fromkeys([*hosts, "localhost", "127.0.0.1"])))
    superlink = _directory(root / "superlink")
    _secret(root / "ca.key", _pem(ca_key))
    (root / "ca.crt").write_bytes(_public(ca))
    _secret(superlink / "server.key", _pem(key))
    (superlink / "server.crt").write_bytes(_public(certificate))
    shutil.copy(root / "ca.crt", superlink)
    for node in range(nodes):
        write_node(root, f"supernode-{node}")
    settings = {"address": address, "root-certificates": str((root / "ca.crt").resolve())}
    flwr = _directory(root / "flwr")
    (flwr / "config.toml").write_text(
        tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: settings}}), "utf-8"
    )


def write_node(root: Path, name: str) -> Path:
    """The directory of one SuperNode: the authority's certificate and a key pair (P-384)."""
    directory = _directory(root / name)
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PrivateFormat.OpenSSH
    _secret(directory / "key", _pem(key, form))
    ssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    (directory / "key.pub").write_bytes(key.public_key().public_bytes(*ssh) + b"\n")
    shutil.copy(root / "ca.crt", directory)
    return directory


def _authority() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name("fedclusters certificate authority")
    builder = _builder(name, name, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    return key, builder.add_extension(usage, critical=True).sign(key, hashes.SHA384())


def _server(
    ca_key: ec.EllipticCurvePrivateKey, ca: x509.Certificate, hosts: Sequence[str]
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP384R1())
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    builder = (
        _builder(_name(hosts[0]), ca.subject, key.public_key())
        .add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .add_extension(authority, critical=False)
    )
    return key, builder.sign(ca_key, hashes.SHA384())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks of devices differ
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _directory(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _public(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem(
    key: ec.EllipticCurvePrivateKey,
    form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, from the first byte on."""
    path.touch(mode=0o600)
    path.write_bytes(content)
