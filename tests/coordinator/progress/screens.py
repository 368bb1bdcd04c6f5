"""A terminal of so many columns for a child process, and what its screen shows, as far as the display needs one."""

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from contextlib import suppress

_TOKEN = re.compile(r"\x1b\[(\?25)?(\d*)([A-Za-z])|[\r\n]|[^\x1b\r\n]+")


class Screen:
    """Understands what rich writes: text, line ends, the cursor up, a line erased, the cursor hidden and shown."""

    def __init__(self, columns):
        self.columns, self.row, self.column = columns, 0, 0
        self.lines, self.cursor, self.unknown = [""], True, []

    def write(self, text):
        for found in _TOKEN.finditer(text):
            token = found[0]
            if token == "\r":
                self.column = 0
            elif token == "\n":
                self._down()
            elif token[0] != "\x1b":
                self._put(token)
            elif found[1]:
                self.cursor = found[3] == "h"
            elif found[3] == "A":
                self.row = max(0, self.row - int(found[2] or 1))
            elif found[3] == "K":
                self.lines[self.row] = ""
            elif found[3] != "m":
                self.unknown.append(token)

    def shown(self):
        return [line.rstrip() for line in self.lines if line.strip()]

    def _put(self, text):
        for character in text:
            if self.column == self.columns:
                self.column = 0
                self._down()
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1

    def _down(self):
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")


def on_terminal(arguments, columns, rows=40, seconds=60.0, env=None, each=lambda screen: None):
    """Run Python with these arguments on a terminal; returns its exit code, the screen, and every byte as text.

    each: called with the screen whenever something was written.
    """
    child, master = pty.fork()
    if child == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        os.execve(sys.executable, [sys.executable, *arguments], kept | {"TERM": "xterm"} | (env or {}))
    screen, said, until = Screen(columns), bytearray(), time.monotonic() + seconds
    kept = b""
    with suppress(OSError):  # the terminal of a child that ended
        while time.monotonic() < until:
            if not select.select([master], [], [], 0.2)[0]:
                continue
            new = os.read(master, 65536)
            if not new:
                break
            said += new
            try:
                text, kept = (kept + new).decode(), b""
            except UnicodeDecodeError:  # a character was cut in two
                kept += new
                continue
            cut = text.rfind("\x1b", len(text) - 6)
            if cut >= 0 and not re.search(r"[A-Za-z]", text[cut:]):  # so was a sequence
                text, kept = text[:cut], text[cut:].encode()
            screen.write(text)
            each(screen)
    _, status = os.waitpid(child, 0)
    os.close(master)
    return os.waitstatus_to_exitcode(status), screen, said.decode(errors="replace")
