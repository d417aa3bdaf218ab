"""Errors that a person can act on."""


class VergeError(Exception):
    """What is wrong and what to change, in one line: the CLI prints the message alone and exits 1."""


class CodecError(VergeError):
    """Bytes that are not a payload of this schema: truncated, corrupted, foreign, or beyond the limits."""
