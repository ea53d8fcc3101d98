"""The `nodeagent` program: runs the subcommand, prints errors with the next step, and returns the exit status."""

import errno
import gc
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from nodeagent.cli.parser import build_parsers
from nodeagent.cli.support.exit_status import EXIT_AWAY, EXIT_ERROR
from nodeagent.cli.support.printable_output import escape_output
from nodeagent.cli.support.standard_streams import discard_output, write_error
from nodeagent.errors import NodeAgentError


class OutputError(NodeAgentError):
    """The output could not be written."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    return run_reporting_errors(lambda: _run_words(sys.argv[1:] if arguments is None else arguments))


def run_reporting_errors(command: Callable[[], int]) -> int:
    """Run a command, print its error with the next step, and return the exit status. Closed standard streams are replaced first."""
    with Path(os.devnull).open("r+", encoding="utf-8") as nothing, _closed_output() as closed:
        # Replace missing streams: stdin is empty, stderr discards everything, and stdout fails
        # when it is written to.
        sys.stdin, sys.stdout, sys.stderr = sys.stdin or nothing, sys.stdout or closed, sys.stderr or nothing
        for stream in (sys.stdout, sys.stderr):
            # characters that the terminal or the file can't represent are escaped
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        with _buffered_output(), escape_output():
            return _run(command)


@contextmanager
def _closed_output() -> Iterator[TextIO]:
    """Yield a substitute for a closed stdout. Text that is written to it causes an error when it is flushed, as for a closed descriptor."""
    stream = os.fdopen(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), "w", encoding="utf-8")
    try:
        yield stream
    finally:
        with suppress(OSError):
            stream.close()


@contextmanager
def _buffered_output() -> Iterator[None]:
    """Add a buffer to stdout if it has none (PYTHONUNBUFFERED). Without a buffer, Python would ignore that only a part of a text was
    written.
    """
    stream = sys.stdout
    raw = getattr(stream, "buffer", None)
    is_own = sys.__stdout__ is stream
    if not is_own or not isinstance(raw, io.FileIO):
        yield
        return
    whole = io.BufferedWriter(raw)
    sys.stdout = text = io.TextIOWrapper(
        whole, stream.encoding, "backslashreplace", newline="\n", line_buffering=stream.isatty()
    )
    try:
        yield
    finally:
        sys.stdout = stream
        with suppress(OSError):
            text.detach()
        with suppress(OSError):
            whole.detach()


def _run(command: Callable[[], int]) -> int:
    try:
        with flushing_output():
            return command()
    except NodeAgentError as err:
        write_error(f"nodeagent: {err.message}\nhint: {err.hint}\n")
        from nodeagent.edge.transport.local_api_client import ApiUnavailable

        causes: list[BaseException] = [err]
        while causes[-1].__cause__ is not None:
            causes.append(causes[-1].__cause__)
        is_away = any(isinstance(cause, ApiUnavailable) for cause in causes)
        status: int = getattr(err, "exit_status", EXIT_AWAY if is_away else EXIT_ERROR)
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # A BrokenPipeError means that the reader of the output has gone.
        discard_output(sys.stdout)
        return EXIT_ERROR


def _run_words(words: list[str]) -> int:
    parser, known = build_parsers(words)
    options, unknown = parser.parse_known_args(words)
    own = getattr(options, "parser", known[options.command])
    if unknown:
        own.refuse(unknown)
    from nodeagent.cli.support.named_files import count_stdin_readers

    if count_stdin_readers(options) > 1:
        own.error("only one argument can be - or /dev/stdin")
    run = importlib.import_module(f"nodeagent.cli.commands.{options.command}").run
    gc.freeze()
    gc.enable()
    status: int = run(options)
    return status


@contextmanager
def flushing_output() -> Iterator[None]:
    """Flush all output after the command, even if it ended with an error or with `--help`, and report any error that occurs then."""
    try:
        try:
            yield
        except (NodeAgentError, KeyboardInterrupt):
            try:
                sys.stdout.flush()
            except OSError:  # not reported, because the command has already failed or was interrupted
                discard_output(sys.stdout)
            raise
        except SystemExit:
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as err:
        # An error with a file name isn't a failure of stdout: the code that opens the file reports it.
        if err.errno not in _OUTPUT_FAILURES or err.filename is not None:
            raise
        discard_output(sys.stdout)
        raise OutputError(
            f"cannot write the output: {os.strerror(err.errno)}",
            hint=_OUTPUT_FAILURES[err.errno],
        ) from err


_OUTPUT_FAILURES = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO),
        "`df` shows which file system is full: make room there, or send the output to another file",
    ),
    errno.EBADF: "open stdout for the command, for example with `>FILE`",
    errno.EAGAIN: "stdout is full and doesn't block: pipe the output through `cat`",
}


if __name__ == "__main__":
    sys.exit(main())
