"""What holds for all unit tests."""

from __future__ import annotations

import os

from hypothesis import settings
from patience import patient_agents, punctual_agents  # noqa: F401

# A busy machine is slow, which is no bug of the code under test. Continuous integration judges a
# change by the same examples every time; people at their desks look for new ones.
settings.register_profile("patient", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("patient")
