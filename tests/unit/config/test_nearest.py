import pytest

from bench_spark.config.problems import nearest

KEYS = ("mode", "rate_per_second", "scope", "in_flight", "messages")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("rate_per_secnd", "rate_per_second"),
        ("Rate-Per-Second", "rate_per_second"),
        ("rate", "rate_per_second"),
        ("inflight", "in_flight"),
        ("mod", "mode"),
        ("message", "messages"),
        ("bandwidth", None),
        ("m", None),
        ("", None),
        ("rate_per_second" * 1000, None),
    ],
)
def test_the_nearest_word_is_found_or_none_is_guessed(word: str, expected: str | None) -> None:
    assert nearest(word, KEYS) == expected


def test_a_beginning_that_two_candidates_share_is_no_completion() -> None:
    assert nearest("pas", ("password_env", "password_file")) is None
