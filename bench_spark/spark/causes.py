"""Finds the reason in an error of Spark, between what py4j, scheduler and stack traces say."""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError

LONGEST = 300

_TRACEBACK = "Traceback (most recent call last):"
_STACK = re.compile(r"^(\s+at |Caused by: |Driver stacktrace:|\s*\.\.\. \d+ more)", re.MULTILINE)
_LAST_FAILURE = re.compile(r"most recent failure: (?:Lost task \S+ in stage \S+ .*?: )?(?=\S)")
_USER_IN_URI = re.compile(r"(?<=://)[^/\s'\"]*@")
_CLASS_BEFORE = re.compile(r"^(?:[a-z_]\w*\.)+(?=[A-Z]\w*(?:Exception|Error)\b)")


def cause_of(error: BaseException) -> str:
    """One line: the error that a Python worker ended with, else the first cause that Java names."""
    text = _words_of(error)
    if _TRACEBACK in text:
        found = _last_line_of_traceback(text.rpartition(_TRACEBACK)[2])
    elif (failure := _LAST_FAILURE.search(text)) is not None:
        found = _first_line(text[failure.end() :])
    else:
        found = _first_line(text)
    found = _USER_IN_URI.sub("***@", _CLASS_BEFORE.sub("", found))
    return (found or type(error).__name__)[:LONGEST]


def _words_of(error: BaseException) -> str:
    """Of a Java error all of its chain of causes, the innermost first: that is where it began."""
    java = error.java_exception if isinstance(error, Py4JJavaError) else None
    if java is None:
        return str(error) or type(error).__name__
    texts = []
    while java is not None:
        texts.append(str(java.toString()))
        java = java.getCause()
    # Spark copies what happened on an executor into the text of its outermost error.
    told = [text for text in texts if _TRACEBACK in text or _LAST_FAILURE.search(text)]
    return told[0] if told else texts[-1]


def _last_line_of_traceback(text: str) -> str:
    """The first line that is not indented, after the frames: type and message."""
    lines = _before_stack(text).splitlines()
    return next((line.strip() for line in lines if line.strip() and line[0] not in " \t"), "")


def _first_line(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line), "")


def _before_stack(text: str) -> str:
    found = _STACK.search(text)
    return text[: found.start()] if found else text
