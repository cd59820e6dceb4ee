"""An HTTP endpoint that a sampler reads."""

from __future__ import annotations

import ssl

from bench_spark.config.broker import Tls
from bench_spark.monitor.reading import Unreadable
from bench_spark.transports.direct_http import DirectHttp, HttpRefusal, HttpUnreachable


class Endpoint:
    """Reads one URL; what goes wrong is Unreadable."""

    def __init__(
        self,
        url: str,
        timeout_seconds: float,
        *,
        login: tuple[str, str] | None = None,
        bearer_token: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._http = DirectHttp(
            url,
            timeout_seconds,
            login=login,
            bearer_token=bearer_token,
            tls_context=_tls_context(tls),
        )
        self.host = self._http.host

    def get(self, path: str = "", accept: str = "*/*") -> bytes:
        try:
            return self._http.ask(path, headers={"Accept": accept})
        except HttpRefusal as error:
            raise Unreadable(f"{self._http.address} answers {error}") from None
        except HttpUnreachable as error:
            raise Unreadable(f"{self._http.address}: {type(error.cause).__name__}") from None


def _tls_context(tls: Tls | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file if tls else None)
        if tls is not None and tls.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if tls is not None and tls.certificate_file:
            context.load_cert_chain(tls.certificate_file, tls.key_file)
    except OSError as error:
        raise Unreadable(f"TLS: {error.strerror}") from None
    return context
