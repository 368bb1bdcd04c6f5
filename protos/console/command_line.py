"""How both commands end: exit codes, and every error as one sentence on standard error, with the code of its page."""

import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

SUCCESS: Final = 0
FAILURE: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130

MISUSED, BUG = "C101", "C901"
"""The codes of a command line that is not understood, and of a bug."""

_ENDS: Final = (".", "!", "?", ")")


class App(Protocol):
    """A typer application."""

    def __call__(self, *, args: Sequence[str] | None, standalone_mode: bool) -> object: ...


def run_command(
    app: App,
    arguments: Sequence[str] | None,
    errors: Callable[[], Mapping[type[Exception], int]],
    code_of: Callable[[BaseException], str],
    *,
    command: str,
    private: bool,
) -> int:
    """Run a command line and return its exit code: 0, 1 for failure, 2 for usage, 130 when it was stopped.

    errors: exceptions whose message is printed, each with its exit code; the first that matches counts. It is asked
    once something was raised, so that a command imports none of them before. Any other exception is a bug: its
    traceback goes to a file of mode 0600, which may contain private text where `private`. code_of: the code of the page
    that says more about an error. command: its name.
    """

    def failed(sentence: str, page: str, code: int) -> int:
        apart = " " if sentence.endswith(_ENDS) else "\n  "  # a command at the end of a line can be copied whole
        print(f"{sentence}{apart}[{page}]", file=sys.stderr)
        if sys.stderr.isatty():
            print(f"more: {command} explain {page}", file=sys.stderr)
        return code

    try:
        code = app(args=arguments, standalone_mode=False)
    except KeyboardInterrupt:
        print("stopped.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last resort: a bug becomes a sentence and a file
        known = next((code for kind, code in errors().items() if isinstance(error, kind)), None)
        if known is not None:
            return failed(str(error), code_of(error), known)
        if isinstance(error, OSError):
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            return failed(f"{what}.", code_of(error), FAILURE)
        if type(error).__name__ == "Abort":
            return INTERRUPTED
        if hasattr(error, "exit_code") and hasattr(error, "format_message"):  # the command line's own usage errors
            return failed(error.format_message(), MISUSED, error.exit_code)
        return failed(_bug(error, private), BUG, FAILURE)
    if code == INTERRUPTED:  # what the command line makes of an interrupt
        print("stopped.", file=sys.stderr)
    return code if isinstance(code, int) else SUCCESS


def _bug(error: Exception, private: bool) -> str:
    handle, path = tempfile.mkstemp(prefix="conclave-trace-", suffix=".txt", text=True)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write("".join(traceback.format_exception(error)))
    caution = " It can hold private text, so read it before you pass it on." if private else ""
    return f"This is a bug in Conclave ({type(error).__name__}). Its trace is in {path}: please report it.{caution}"
