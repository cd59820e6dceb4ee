"""From PerfTest's options to a scenario that puts the same load on a broker.

PerfTest's defaults are not ours, so the scenario says what PerfTest would have done without being
told: as fast as possible, 12 bytes, manual acknowledgements, no limit to the prefetch, an exchange
named like its type, no warm-up.
"""

from __future__ import annotations

import re

from bench_spark.importing.address import take_uri
from bench_spark.importing.draft import Draft, plain_name
from bench_spark.importing.perftest_amqp import AmqpTranslation
from bench_spark.importing.perftest_load import LoadTranslation
from bench_spark.importing.perftest_translation import Members
from bench_spark.importing.perftest_words import Given, read_words

DEFAULT_NAME = "perftest"

# A comma may also be part of a password.
_BETWEEN_URIS = re.compile(r"\s*,\s*(?=amqps?:)")


def import_perftest(text: str, name: str | None = None) -> Draft:
    """The draft of a command line's scenario, called `name`, else by --id, else `perftest`."""
    given = read_words(text)
    draft = Draft(name or plain_name(given.last("id") or "", DEFAULT_NAME))
    for flag in given.flags:
        if not flag.is_mapped:
            draft.leave_out(flag.shown, flag.text)
    members = Members.of(given)
    LoadTranslation(given, draft, members).translate()
    AmqpTranslation(given, draft, members).translate()
    _take_address(given, draft)
    draft.check("the flags")
    return draft


def _take_address(given: Given, draft: Draft) -> None:
    option = "uris" if "uris" in given else "uri"
    text = given.last(option) or ""
    addresses = _BETWEEN_URIS.split(text.strip()) if option == "uris" else [text]
    names = given.all("server-name-indication")
    if not text:
        for name in ("use-default-ssl-context", "server-name-indication"):
            if name in given:
                draft.leave_out(f"--{name}", "belongs to a broker file; give --uri too")
        return
    if len(addresses) > 1:
        draft.leave_out(f"--{option}", f"{len(addresses)} addresses, of which the first is taken")
    draft.broker.set("kind", "amqp")
    take_uri(draft, f"--{option}", addresses[0], ("amqp", "amqps"))
    is_encrypted = addresses[0].startswith("amqps:")
    if "use-default-ssl-context" in given:
        draft.broker.set("tls.insecure", False, "--use-default-ssl-context")
    elif is_encrypted:
        draft.broker.set("tls.insecure", True, "PerfTest's default: any certificate")
    if names:
        draft.broker.set("tls.server_name", names[0], "--server-name-indication")
