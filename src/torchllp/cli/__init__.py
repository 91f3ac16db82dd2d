"""The command `llp`: one file a command, imported when it is called. The only place that prints."""

import signal
import sys
from importlib.metadata import version
from typing import Annotated, Any, Never

from cyclopts import App, CycloptsError, Parameter
from cyclopts import ValidationError as CycloptsValidationError

from torchllp.cli.memory import set_up_memory
from torchllp.errors import LLPError, ProcessLost
from torchllp.launched import is_first

app = App(
    name="llp",
    help="Learning from label proportions: a classifier of single instances from bags whose class shares are known.",
    version=lambda: version("torchllp"),
    help_flags=["--help", "-h"],
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # it would exit without a word
)
app.meta.suppress_keyboard_interrupt = False
app.command("torchllp.cli.train:train", name="train", help="Train a classifier from bags and their proportions.")
app.command("torchllp.cli.tune:tune", name="tune", help="Search the settings that held-out bags like best.")
app.command(
    "torchllp.cli.pretrain:pretrain", name="pretrain", help="Learn features without any label, to start training from."
)
app.command("torchllp.cli.suite:suite", name="suite", help="Train all runs of a table or figure, and draw it.")
app.command("torchllp.cli.check:check", name="check", help="Say what bags can teach, before any training.")
app.command("torchllp.cli.evaluate:evaluate", name="evaluate", help="Show how good a run's classifier is.")
app.command(
    "torchllp.cli.report:report", name="report", help="Write what runs did as one HTML page that needs no network."
)
app.command("torchllp.cli.plot:plot", name="plot", help="Draw one figure of runs, for a paper.")
app.command("torchllp.cli.predict:predict", name="predict", help="Classify instances with a run's classifier.")
app.command("torchllp.cli.export:export", name="export", help="Write a run's classifier to a file that runs elsewhere.")
app.command("torchllp.cli.methods:methods", name="methods", help="List the methods, or show one with its numbers.")
app.command("torchllp.cli.models:models", name="models", help="List the models.")
app.command("torchllp.cli.datasets:datasets", name="datasets", help="List the data sets.")
app.register_install_completion_command(help="Install completion of commands and options for this shell.")


class Terminated(BaseException):
    """SIGTERM, as an exception that unwinds the stack."""


class Misuse(LLPError):
    """A command line that makes no sense."""


@app.meta.default
def _launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    debug: Annotated[bool, Parameter(negative="")] = False,
) -> Any:
    """Options of every command.

    Parameters
    ----------
    debug
        Show the traceback of an error.
    """
    try:
        return app(tokens, exit_on_error=False, print_error=False)
    except LLPError as error:
        if debug:
            raise
        code = 2 if isinstance(error, Misuse) else 1
        return fail(str(error), code, by_everyone=isinstance(error, ProcessLost))  # it may be the first that has gone
    except BrokenPipeError:
        raise
    except OSError as error:  # a path that cannot be read or written
        if debug:
            raise
        return fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit code is 0, 1 for a user's error, 2 for misuse, 130 or 143 when stopped."""

    def terminate(*_: object) -> Never:
        raise Terminated

    set_up_memory()
    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        return app.meta(arguments, exit_on_error=False, print_error=False) or 0
    except CycloptsError as error:
        return fail(_misuse(error), code=2)
    except KeyboardInterrupt:
        return fail("stopped", code=130)
    except Terminated:
        return fail("terminated", code=143)
    except BrokenPipeError:  # the reader of a pipe went away, as `head` does
        sys.stderr.close()
        return 1
    finally:
        signal.signal(signal.SIGTERM, previous)


def fail(message: str, code: int = 1, *, by_everyone: bool = False) -> int:
    """Print one line to standard error, by the first of several processes unless said; the exit code."""
    if by_everyone or is_first():
        print(f"llp: {message}", file=sys.stderr)
    return code


def _misuse(error: CycloptsError) -> str:
    """One line for a command line that cannot be understood."""
    import pydantic

    from torchllp.config import explain

    cause = error.__cause__
    if isinstance(error, CycloptsValidationError) and isinstance(cause, pydantic.ValidationError):
        setting, _, rest = explain(cause).partition(":")
        return f"--{setting.replace('_', '-')}:{rest}"
    return " ".join(str(error).split())
