"""The one kind of error that interbasis raises on purpose.

Its message is one sentence or two that a person can act on: what was expected, what was received,
what to do. The command line prints it and exits with code 2.
"""


class InterbasisError(ValueError):
    """The input cannot be used; the message says why and what to do."""
