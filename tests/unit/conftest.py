"""What holds for all unit tests."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is slow, which is no bug of the code under test.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
