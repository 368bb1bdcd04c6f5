"""How both commands end: exit codes, and every error as one sentence on standard error."""

import os
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

SUCCESS: Final = 0
FAILURE: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130


class App(Protocol):
    """A typer application."""

    def __call__(self, *, args: Sequence[str] | None, standalone_mode: bool) -> object: ...


def run_command(
    app: App, arguments: Sequence[str] | None, errors: Mapping[type[Exception], int], *, private: bool
) -> int:
    """Run a command line and return its exit code: 0, 1 for failure, 2 for usage, 130 when it was stopped.

    errors: exceptions whose message is printed, each with its exit code; the first that matches counts. Any other is a
    bug: its traceback goes to a file of mode 0600, which may contain private text where `private`.
    """
    try:
        code = app(args=arguments, standalone_mode=False)
    except KeyboardInterrupt:
        print("stopped.", file=sys.stderr)
        return INTERRUPTED
    except tuple(errors) as error:
        return _failed(str(error), next(code for kind, code in errors.items() if isinstance(error, kind)))
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return _failed(f"{what}.", FAILURE)
    except Exception as error:  # noqa: BLE001 - the last resort: a bug becomes a sentence and a file
        if type(error).__name__ == "Abort":
            return INTERRUPTED
        if hasattr(error, "exit_code") and hasattr(error, "format_message"):  # the command line's own usage errors
            return _failed(error.format_message(), error.exit_code)
        return _failed(_bug(error, private), FAILURE)
    return code if isinstance(code, int) else SUCCESS


def _failed(sentence: str, code: int) -> int:
    print(sentence, file=sys.stderr)
    return code


def _bug(error: Exception, private: bool) -> str:
    handle, path = tempfile.mkstemp(prefix="conclave-trace-", suffix=".txt", text=True)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write("".join(traceback.format_exception(error)))
    caution = " It can hold private text, so read it before you pass it on." if private else ""
    return f"This is a bug in Conclave ({type(error).__name__}). Its trace is in {path}: please report it.{caution}"
