"""A certificate for tests with TLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def self_signed(
    directory: Path, name: str = "localhost", also: str = "DNS:localhost"
) -> tuple[Path, Path]:
    """A certificate for a host and its key; the test is skipped where none can be made."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    made, key = directory / "cert.pem", directory / "key.pem"
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={also}"]
    request = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run(
        [*request, *subject, "-keyout", key, "-out", made], check=True, capture_output=True
    )
    return made, key
