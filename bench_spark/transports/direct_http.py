"""Opens HTTP connections to a broker's monitoring and management: no proxy, no redirects."""

from __future__ import annotations

import ssl
import urllib.request
from typing import Any


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Another host would be given the password that was meant for this one."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def direct_opener(tls_context: ssl.SSLContext) -> urllib.request.OpenerDirector:
    """Connects directly, whatever proxy the shell has for the web."""
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        _StayHere(),
        urllib.request.HTTPSHandler(context=tls_context),
    )
