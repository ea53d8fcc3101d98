"""Files that the command line names: a path, `-` for stdin, or a pipe such as a shell's `<(...)`.

nodeagent's own files, such as the saved state, are read by other modules, which never read from a pipe, because that could block.
"""

import argparse
import errno
import os
import shlex
import stat
import sys
from pathlib import Path
from typing import Self

from nodeagent.edge.files import state_files
from nodeagent.edge.files.state_files import StateFileError

STDIN = "/dev/stdin"
_SPELLINGS = frozenset({"-", STDIN, "/dev/fd/0", "/proc/self/fd/0", "/proc/thread-self/fd/0"})
_DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/")


def named_path(word: str) -> str:
    """Check that a path on the command line isn't empty, and return it. This function is a type for argparse.

    Raises:
        argparse.ArgumentTypeError: the path is empty, as from an unset variable.
    """
    if not word:
        raise argparse.ArgumentTypeError("'' is not a path: is a shell variable empty or not set?")
    return word


def add_socket_argument(parser: argparse.ArgumentParser, default: str, purpose: str = "the agent's socket") -> None:
    """Add `--socket`, an option for the path of a socket."""
    parser.add_argument(
        "--socket", type=named_path, default=default, metavar="PATH", help=f"{purpose} (default: {default})"
    )


def find_file_type(path: str) -> int | None:
    """Return the type of a file, such as stat.S_IFREG. None means that the file doesn't exist or can't be accessed. If the caller then
    reads the file, this fails with the reason.
    """
    try:
        return stat.S_IFMT(Path(path).stat().st_mode)
    except OSError:
        return None


def is_absent(path: str) -> bool:
    """Return whether a file certainly doesn't exist. A path that the user may not access counts as existing."""
    try:
        Path(path).stat()
    except OSError as err:
        return err.errno in {errno.ENOENT, errno.ENOTDIR}
    return False


class NamedFile(str):
    """Path as the user typed it. All spellings of stdin count as the same path. The content of a pipe is cached, because it can be read
    only once.
    """

    __slots__ = ("_content",)
    _content: bytes

    def __new__(cls, word: str) -> Self:
        named_path(word)
        # the word `./-` names a file, and only `-` is stdin
        plain = os.path.normpath(word) if word.startswith("/") else word
        return super().__new__(cls, STDIN if plain in _SPELLINGS else word)

    @property
    def is_stdin(self) -> bool:
        return self == STDIN

    @property
    def is_pipe(self) -> bool:
        """Whether the path is stdin or a FIFO, which can be read only once."""
        return self.is_stdin or find_file_type(self) == stat.S_IFIFO

    def check_open(self) -> None:
        """Check that the descriptor is open if the path names one, such as `/dev/fd/63`.

        Raises:
            StateFileError: the descriptor isn't open.
        """
        if self.startswith(_DESCRIPTORS) and is_absent(self):
            raise StateFileError(
                f"cannot read {self}: the descriptor is not open",
                path=self,
                error=errno.ENOENT,
                hint="sudo closes the pipe of <(...): pipe the input in, and name - for stdin",
            )

    def read(self, max_bytes: int) -> bytes | None:
        """Return the content of the file. None means that the file doesn't exist.

        Raises:
            StateFileError: the file can't be read or is too large, or a pipe is empty, because the command that writes to it may have
                failed.
        """
        if hasattr(self, "_content"):
            return self._content
        if not self.is_pipe:
            self.check_open()
            try:
                return state_files.read(self, max_bytes=max_bytes, follow_symlinks=True)
            except StateFileError as err:
                if err.errno == errno.EIO:
                    raise
                # the next step that StateFileError suggests suits only the agent's own files, so the hint is replaced
                raise StateFileError(
                    err.message,
                    path=self,
                    error=err.errno,
                    hint=f"name a file, or - for stdin; `ls -lLd {shlex.quote(self)}` shows what is there, "
                    f"`namei -l {shlex.quote(self)}` who may read it",
                ) from err
        self._content = self._read_pipe(max_bytes)
        return self._content

    def _read_pipe(self, max_bytes: int) -> bytes:
        try:
            if self.is_stdin:
                content = sys.stdin.buffer.read(max_bytes + 1)
            else:
                with Path(self).open("rb") as pipe:
                    content = pipe.read(max_bytes + 1)
        except OSError as err:
            why = os.strerror(err.errno or 0)
            raise StateFileError(
                f"cannot read {self}: {why}",
                path=self,
                error=err.errno,
                hint=f"see `ls -l {shlex.quote(self)}`; name a file, or - for stdin",
            ) from err
        if len(content) > max_bytes:
            raise StateFileError(
                f"cannot read {self}: got more than {max_bytes} bytes",
                path=self,
                error=None,
                hint="check the input; pods can be in several files, each named with --file",
            )
        if not content:
            raise StateFileError(
                f"cannot read {self}: got no input",
                path=self,
                error=None,
                hint="the command before the pipe may have failed: see its output with `... | head -c 1000`, or name a file",
            )
        return content


def is_pipe(path: str) -> bool:
    """Return whether a path is a NamedFile that can be read only once, such as stdin."""
    return isinstance(path, NamedFile) and path.is_pipe


def read_named(path: str, max_bytes: int) -> bytes | None:
    """Read the file at a path. Only a NamedFile may be a pipe; any other path must be a regular file."""
    if isinstance(path, NamedFile):
        return path.read(max_bytes)
    return state_files.read(path, max_bytes=max_bytes, follow_symlinks=True)


def count_stdin_readers(options: argparse.Namespace) -> int:
    """Count the arguments that name stdin. More than one would be an error, because stdin can be read only once."""
    given = [one for value in vars(options).values() for one in (value if isinstance(value, list) else [value])]
    return sum(isinstance(one, NamedFile) and one.is_stdin for one in given)
