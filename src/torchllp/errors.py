"""What a user can put right, as an exception."""


class LLPError(ValueError):
    """Input that cannot be used as it is. Its message is one sentence that says what, where and how to mend it.

    The command line prints the message and exits with code 1; everything else is a fault of the library.
    """


class ProcessLost(LLPError):
    """Another process of the same training has gone."""


def first_line(error: Exception) -> str:
    """An error in one line: the sentence of an LLPError as it is, of any other its kind and how its message begins.

    >>> first_line(RuntimeError("CUDA error: out of memory\\nCompile with ..."))
    'RuntimeError: CUDA error: out of memory'
    """
    if isinstance(error, LLPError):
        return str(error)
    return f"{type(error).__name__}: {(str(error).splitlines() or ['it does not say why'])[0]}"
