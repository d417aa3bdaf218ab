"""Verifiers: from a completion's text to a reward and a verdict."""

from actors.verifiers.verify import Verifiers

__all__ = ["Verifiers"]
