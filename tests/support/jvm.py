"""How the tests start a JVM."""

from __future__ import annotations

__all__ = ["QUICK_JVM"]

QUICK_JVM = "-XX:TieredStopAtLevel=1"
"""For one that lives for a minute: what the better compiler gains is less than its own work."""
