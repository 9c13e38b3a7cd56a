"""Certificates for tests: two authorities, and what one of them has signed."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificates(folder: Path, names: str = "IP:127.0.0.1") -> Path:
    """``ca.pem`` and ``other.pem`` are authorities; ``server`` and ``client`` (.pem, .key) are signed by the first."""
    for authority in ("ca", "other"):
        _openssl(
            folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",  # Python 3.13 accepts no authority without it
            "-subj", f"/CN=authority {authority}", "-keyout", f"{authority}.key", "-out", f"{authority}.pem",
        )  # fmt: skip
    for name, purpose in (("server", "serverAuth,clientAuth"), ("client", "clientAuth")):
        (folder / f"{name}.ext").write_text(f"subjectAltName={names}\nextendedKeyUsage={purpose}\n")
        _openssl(
            folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.csr",
        )  # fmt: skip
        _openssl(
            folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem",
        )  # fmt: skip
    return folder


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
