"""Certificates of an authority of our own, and an endpoint that does nothing but TLS."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

_LONG_AGO, _LESS_LONG_AGO = "200101000000Z", "200102000000Z"

_SETTINGS = """
[ca]
default_ca = own
[own]
database = {directory}/index.txt
serial = {directory}/serial
new_certs_dir = {directory}
default_md = sha256
default_days = 2
copy_extensions = copy
policy = any
[any]
commonName = supplied
"""


class Certificate(NamedTuple):
    file: Path
    key: Path


class Authority:
    """Signs certificates, good ones and bad ones."""

    def __init__(self, directory: Path) -> None:
        openssl = shutil.which("openssl")
        if openssl is None:
            pytest.skip("openssl is not installed")
        self._openssl = openssl
        self._directory = directory
        self.certificate = Certificate(directory / "ca.pem", directory / "ca.key")
        self._call(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=own"),
            *("-keyout", str(self.certificate.key), "-out", str(self.certificate.file)),
        )
        (directory / "index.txt").touch()
        (directory / "serial").write_text("01\n")
        self._settings = directory / "ca.conf"
        self._settings.write_text(_SETTINGS.format(directory=directory))

    def issue(self, host: str, is_expired: bool = False) -> Certificate:
        name = f"{host}{'-expired' if is_expired else ''}"
        made = Certificate(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        request = self._directory / f"{name}.csr"
        self._call(
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
            *("-addext", f"subjectAltName=DNS:{host}", "-keyout", str(made.key)),
            *("-out", str(request)),
        )
        dates = ("-startdate", _LONG_AGO, "-enddate", _LESS_LONG_AGO) if is_expired else ()
        self._call(
            *("ca", "-batch", "-notext", "-config", str(self._settings), *dates),
            *("-cert", str(self.certificate.file), "-keyfile", str(self.certificate.key)),
            *("-in", str(request), "-out", str(made.file)),
        )
        return made

    def _call(self, *arguments: str) -> None:
        subprocess.run([self._openssl, *arguments], check=True, capture_output=True)


@dataclass
class Endpoint:
    port: int
    connections: int = 0


@contextmanager
def tls_endpoint(certificate: Certificate, target: tuple[str, int]) -> Iterator[Endpoint]:
    """Whoever connects speaks TLS with this certificate, and behind it with the target."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint(listener.getsockname()[1])

        def serve() -> None:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                endpoint.connections += 1
                threading.Thread(target=relay, args=(accepted,), daemon=True).start()

        def relay(accepted: socket.socket) -> None:
            try:
                outside = context.wrap_socket(accepted, server_side=True)
            except OSError:
                return  # the certificate was not to the client's taste
            inside = socket.create_connection(target)
            threading.Thread(target=_copy, args=(inside, outside), daemon=True).start()
            _copy(outside, inside)

        threading.Thread(target=serve, daemon=True).start()
        yield endpoint
        listener.shutdown(socket.SHUT_RDWR)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
