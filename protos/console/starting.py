"""The first moments of a command: an interrupt while it is still being imported ends it without a traceback."""

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # every import here is a moment in which an interrupt has a traceback
    from typing import Any, NoReturn

_INTERRUPTED = 130  # `protos.console.command_line.INTERRUPTED`

LOADING = "loading"
"""The name of a thread that imports libraries while somebody is asked something."""


def started(module: str) -> int:
    """Import a command's module and run its `main`. Ctrl-C before and after that ends the process in one word."""
    mine = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    kept, sys.unraisablehook = sys.unraisablehook, _raised_again
    if mine:  # what nohup ignores stays ignored
        signal.signal(signal.SIGINT, _left)
    try:
        from importlib import import_module

        main = import_module(module).main
        if mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = int(main())
        _leave_loading(code)
        _ending()
        return code
    except KeyboardInterrupt:
        _left()
    finally:
        sys.unraisablehook = kept
        if mine:
            signal.signal(signal.SIGINT, _left)


def _ending() -> None:
    """Spare Python the search for garbage in all that was imported, which would take seconds as it ends."""
    import gc

    gc.freeze()


def _leave_loading(code: int) -> None:
    """End at once where a thread still imports: waiting takes seconds, and ending around it can crash a library."""
    import threading

    if any(each.name == LOADING for each in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _left(*told: "Any") -> "NoReturn":
    """End at once: nothing was begun, or all of it has ended."""
    os.write(2, b"stopped.\n")
    os._exit(_INTERRUPTED)


def _raised_again(found: "sys.UnraisableHookArgs") -> None:
    """An interrupt that came where Python cannot raise, as in a callback of an import, is raised a little later."""
    import threading

    if found.exc_type is KeyboardInterrupt:  # here it would only come where Python cannot raise
        main = threading.main_thread().ident or 0
        again = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT))  # which ends a call that waits, too
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(found)
