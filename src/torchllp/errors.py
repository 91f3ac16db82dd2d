"""What a user can put right, as an exception."""


class LLPError(ValueError):
    """Input that cannot be used as it is. Its message is one sentence that says what, where and how to mend it.

    The command line prints the message and exits with code 1; everything else is a fault of the library.
    """


class ProcessLost(LLPError):
    """Another process of the same training has gone."""
