"""Certificates and keys: they verify, only their owner reads them, and none is replaced."""

import datetime
import ipaddress
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from flwr.cli.supernode.register import try_load_public_key

from deploy.__main__ import main
from deploy.keys import make_federation


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation of two SuperNodes."""
    root = tmp_path_factory.mktemp("keys") / "federation"
    assert main(["keys", "--dir", str(root), "--host", "fl.example.org", "--nodes", "2"]) == 0
    return root


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_the_server_certificate_verifies_for_its_names_alone(made: Path) -> None:
    """By the strict rules of the web (RFC 5280), for every host that was named."""
    builder = PolicyBuilder().store(Store([certificate(made / "ca.crt")]))
    server = certificate(made / "superlink/server.crt")
    names: list[x509.GeneralName] = [
        *map(x509.DNSName, ("superlink", "fl.example.org", "localhost")),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    for name in names:
        assert builder.build_server_verifier(name).verify(server, [])  # type: ignore[arg-type]
    with pytest.raises(VerificationError):
        builder.build_server_verifier(x509.DNSName("elsewhere.org")).verify(server, [])
    left = server.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=700) < left < datetime.timedelta(days=825)


def test_another_authority_does_not_vouch_for_it(made: Path, tmp_path: Path) -> None:
    make_federation(tmp_path / "other", ["superlink"], 1, "127.0.0.1:8000")
    store = Store([certificate(tmp_path / "other/ca.crt")])
    verifier = PolicyBuilder().store(store).build_server_verifier(x509.DNSName("superlink"))
    with pytest.raises(VerificationError):
        verifier.verify(certificate(made / "superlink/server.crt"), [])


def test_flower_takes_the_supernode_keys(made: Path) -> None:
    for name in ("supernode-0", "supernode-1"):
        private = load_ssh_private_key((made / name / "key").read_bytes(), None)
        public = load_ssh_public_key((made / name / "key.pub").read_bytes())
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        assert isinstance(public, ec.EllipticCurvePublicKey)
        assert private.public_key() == public
        assert try_load_public_key(made / name / "key.pub")
    assert (made / "supernode-0/key").read_bytes() != (made / "supernode-1/key").read_bytes()


def test_secrets_are_for_their_owner_and_a_device_gets_its_own_only(made: Path) -> None:
    for path in (made / "ca.key", made / "superlink/server.key", made / "supernode-0/key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_pem_private_key((made / "ca.key").read_bytes(), None)
    assert {p.name for p in (made / "supernode-0").iterdir()} == {"ca.crt", "key", "key.pub"}
    assert {p.name for p in (made / "superlink").iterdir()} == {
        "ca.crt",
        "server.crt",
        "server.key",
    }


def test_keys_in_use_are_not_replaced(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (made / "ca.key").read_bytes()
    assert main(["keys", "--dir", str(made)]) == 2
    assert "keys in use are not replaced" in capsys.readouterr().err
    assert main(["add-node", "supernode-0", "--dir", str(made)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (made / "ca.key").read_bytes() == before


def test_a_node_can_be_added(made: Path, tmp_path: Path) -> None:
    assert main(["add-node", "pi-7", "--dir", str(made)]) == 0
    assert (made / "pi-7/ca.crt").read_bytes() == (made / "ca.crt").read_bytes()
    assert main(["add-node", "pi-8", "--dir", str(tmp_path)]) == 2
    assert main(["keys", "--dir", str(tmp_path / "x"), "--nodes", "0"]) == 2
