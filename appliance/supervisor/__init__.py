"""Observe, decide, act: the one brain that keeps engines running."""
