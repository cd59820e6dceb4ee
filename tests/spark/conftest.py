"""Agents in the process of a test."""

from __future__ import annotations

from patience import patient_agents  # noqa: F401
