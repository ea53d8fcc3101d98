"""The `nodeagent` command: finds the subcommand, prints errors with their next step, gives the exit code."""

import argparse
import errno
import importlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO

from nodeagent import __version__
from nodeagent.cli.support.help_text import HelpText, documents
from nodeagent.cli.support.printable_output import printable_output
from nodeagent.errors import NodeAgentError, printable

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_DIFFERENCE = 3
EXIT_REFUSED = 4

COMMANDS = {
    "run": "run the agent (what nodeagent.service does)",
    "inspect": "show pods, their CPUs and memory, and every difference from what was promised",
    "topology": "draw the machine, or print it for other tools",
    "capture": "take the node into one file, without secrets: for other commands' --machine, tests and bug reports",
    "check": "say whether this node is fit for pinning, and what mends it",
    "config": "say whether a configuration is right, what it comes to, and what becomes of kubelet's",
    "completion": "print what makes bash, zsh or fish complete command lines, with names of pods and containers",
    "exec": "run a command in a container's cgroup",
    "apply": "put manifests in place, once it is known what comes of them",
    "diff": "say what manifests would change: what would restart, and where it would land",
    "delete": "remove manifests from their directory: their pods end",
    "retry": "decide again on a refused pod",
    "release": "end pods and give back what they hold, or all that the agent made on this node",
    "checkpoint": "say whether a state file of nodeagent or kubelet is whole, show it, or write it in another version",
    "explain": "say why a pod was admitted or refused, step by step, and what would admit it",
    "simulate": "replay pod events on a described machine, as the agent or as kubelet 1.36 decides",
}
"""Subcommand → help; each lives in nodeagent.cli.commands.<name> with `add_arguments` and `run`, and is imported only when asked for."""


class OutputError(NodeAgentError):
    """The output could not be written."""


class _CommandParser(argparse.ArgumentParser):
    """Ends every complaint about arguments as all errors end: with the next step."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"nodeagent: {printable(message)}\nhint: {self.prog} --help says what can be given\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name the word that was probably meant, where argparse only lists them all."""
        if action.choices is not None and value not in action.choices:
            from nodeagent.formats.syntax.fields import nearest

            choices = [str(choice) for choice in action.choices]
            meant = nearest(str(value), choices) or f", must be one of {', '.join(choices)}"
            raise argparse.ArgumentError(action, f"there is no '{value}'{meant}")

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Refuse words that nothing understands; of options with those that were probably meant."""
        from nodeagent.formats.syntax.fields import nearest

        options = [spelling for action in self._actions for spelling in action.option_strings]
        meant = [nearest(word.partition("=")[0], options) for word in words if word.startswith("--")]
        self.error(f"unrecognized arguments: {' '.join(words)}{next(filter(None, meant), '')}")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write it, where argparse keeps quiet about what can't be written."""
        if file is sys.stdout:
            file.write(message)
        else:
            _complain(message)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the result is the exit status."""
    with Path(os.devnull).open("r+", encoding="utf-8") as nothing, _closed_output() as closed:
        # what we were started without: stdin is empty, stderr takes everything, and of stdout it is told once it is written to
        sys.stdin, sys.stdout, sys.stderr = sys.stdin or nothing, sys.stdout or closed, sys.stderr or nothing
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a terminal or a file of few characters: what it lacks is spelled
                stream.reconfigure(errors="backslashreplace")
        with _buffered_output(), printable_output():
            return _answered(arguments)


@contextmanager
def _closed_output() -> Iterator[TextIO]:
    """Give a stream on which all that is written fails as on a closed descriptor: at its next flush."""
    stream = os.fdopen(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), "w", encoding="utf-8")
    try:
        yield stream
    finally:
        with suppress(OSError):
            stream.close()


@contextmanager
def _buffered_output() -> Iterator[None]:
    """Give stdout a buffer where it has none (PYTHONUNBUFFERED): without one nobody notices what was written in part."""
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


def _answered(arguments: list[str] | None) -> int:
    try:
        with _written():
            return _run(_options(sys.argv[1:] if arguments is None else arguments))
    except NodeAgentError as err:
        _complain(f"nodeagent: {err.message}\nhint: {err.hint}\n")
        return getattr(err, "exit_status", EXIT_ERROR)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone.
        _drop(sys.stdout)
        return EXIT_ERROR


def _options(words: list[str]) -> argparse.Namespace:
    parser, known = _parsers(words)
    options, unknown = parser.parse_known_args(words)
    if unknown:
        getattr(options, "parser", known[options.command]).refuse(unknown)
    from nodeagent.cli.support.named_files import readers_of_stdin

    if readers_of_stdin(options) > 1:
        getattr(options, "parser", known[options.command]).error("only one argument can be - or /dev/stdin")
    return options


def _run(options: argparse.Namespace) -> int:
    status: int = importlib.import_module(f"nodeagent.cli.commands.{options.command}").run(options)
    return status


@contextmanager
def _written() -> Iterator[None]:
    """Have all output written at the end, also after `--help`, and what was answered before an error."""
    try:
        try:
            yield
        except NodeAgentError:
            _flushed_or_dropped()
            raise
        except SystemExit:
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as err:
        # Of a file there is its name, and the edges turn what they meet into errors of their own.
        if err.errno not in _OUTPUT_FAILURES or err.filename is not None:
            raise
        _drop(sys.stdout)
        raise OutputError(
            f"cannot write the output: {os.strerror(err.errno)}",
            hint=_OUTPUT_FAILURES[err.errno],
        ) from err


_OUTPUT_FAILURES = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO),
        "`df` shows which file system is full: make room there, or send the output to another file",
    ),
    errno.EBADF: "give the command an open standard output",
    errno.EAGAIN: "it was opened without blocking, and is full: send the output through `| cat`",
}


def _flushed_or_dropped() -> None:
    """Write what is still to be written; where that fails, there is an error already that says more."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop(sys.stdout)


def _complain(text: str) -> None:
    """Say what is wrong; where nobody can be told, the exit status says it alone."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _drop(sys.stderr)


def _drop(stream: TextIO) -> None:
    """Send what is still to be flushed nowhere: python would complain once more while it flushes at exit, with a status of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def parser_for(words: Sequence[str]) -> argparse.ArgumentParser:
    """Give the parser of all commands; only the one that the words name knows its arguments."""
    return _parsers(words)[0]


def _parsers(words: Sequence[str]) -> tuple[_CommandParser, dict[str, _CommandParser]]:
    parser = _CommandParser(
        prog="nodeagent",
        description="Pins pods to whole CPUs next to their memory.",
        formatter_class=HelpText,
        epilog=f"documents and examples: {documents()}\nmore on one command: nodeagent COMMAND --help\nnext: nodeagent inspect",
    )
    parser.add_argument("--version", action="version", version=f"nodeagent {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    known = {
        name: commands.add_parser(
            name, help=text, description=text[:1].upper() + text[1:] + ".", formatter_class=HelpText
        )
        for name, text in COMMANDS.items()
    }
    name = next((word for word in words if not word.startswith("-")), None)
    if name in known:
        importlib.import_module(f"nodeagent.cli.commands.{name}").add_arguments(known[name])
    return parser, known


if __name__ == "__main__":
    sys.exit(main())
