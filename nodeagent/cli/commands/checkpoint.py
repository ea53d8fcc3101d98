"""`nodeagent checkpoint`: verifies a state file of nodeagent or kubelet, shows its content, or converts it to another version."""

import argparse
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import to_builtins

from nodeagent.cli.support.actions import add_actions
from nodeagent.cli.support.documents import add_out_argument, add_output_argument, render_document, write_out
from nodeagent.cli.support.exit_status import EXIT_WRONG
from nodeagent.cli.support.named_files import NamedFile, read_named
from nodeagent.formats.checkpoint.agreement import Disagreement, check_state, find_disagreements
from nodeagent.formats.checkpoint.checkpoint_versions import (
    WRITABLE,
    Checkpoint,
    CheckpointError,
    Containers,
    Document,
    checkpoint_document,
    convert_checkpoint,
    read_checkpoint,
)
from nodeagent.formats.checkpoint.node_state import MAX_BYTES
from nodeagent.formats.syntax.json_values import MisfitError, parse_json
from nodeagent.views.checkpoint_text import format_agreement, render_checkpoint, summarise_checkpoint

_EXAMPLES = """\
exit status: 0: the file is intact; 2: it is damaged, or differs from --state; 1: it could not be read or converted; 64: wrong arguments

examples:
  nodeagent checkpoint verify /var/lib/nodeagent/nodeagent_state
  nodeagent checkpoint verify /var/lib/nodeagent/cpu_manager_state --state /var/lib/nodeagent/nodeagent_state
  nodeagent checkpoint show /var/lib/kubelet/cpu_manager_state -o yaml
  nodeagent checkpoint convert /var/lib/nodeagent/cpu_manager_state --to cpu-v3 --out /tmp/cpu_manager_state

Reads cpu_manager_state (cpu-v1 to cpu-v4), memory_manager_state (memory-v1 to memory-v3), kubelet_internal_checkpoint (devices-v2)
and nodeagent_state.
next: nodeagent checkpoint show FILE"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    helps = {
        "verify": "show the version of a file, and whether it is intact",
        "show": "print the content of a file, even a damaged one, as far as it can be read",
        "convert": "convert a file to another version",
    }
    made = add_actions(parser, helps, epilog=_EXAMPLES)
    for action in made.values():
        action.add_argument(
            "file",
            type=NamedFile,
            metavar="FILE|-",
            help="a state file of kubelet or nodeagent, in any version; - is stdin",
        )
    for name in ("verify", "show"):
        add_output_argument(made[name])
    made["verify"].add_argument(
        "--state",
        type=NamedFile,
        metavar="FILE|-",
        help="a nodeagent_state: also show the differences between the file and this state, which the agent writes before kubelet's files",
    )
    convert = made["convert"]
    versions = ", ".join(WRITABLE)
    convert.add_argument("--to", choices=WRITABLE, required=True, metavar="VERSION", help=f"one of {versions}")
    add_out_argument(convert, "the file to write; it must not exist yet")
    convert.add_argument(
        "--containers",
        type=NamedFile,
        metavar="FILE|-",
        help='ids for cpu-v1: JSON {"CONTAINER_ID": ["POD_UID", "CONTAINER"]}',
    )
    convert.add_argument("--lossy", action="store_true", help="leave out values that this version can't express")


def run(options: argparse.Namespace) -> int:
    """Verify, show or convert the state file, as the chosen action says.

    Raises:
        NodeAgentError: the file cannot be read, isn't a checkpoint, or can't be expressed in the requested version.
    """
    checkpoint = _read_file(options.file)
    if options.action == "convert":
        containers = {} if options.containers is None else _read_containers(options.containers)
        with _prefix_errors(options.file):
            content = convert_checkpoint(checkpoint, options.to, containers, lossy=options.lossy)
        write_out(options.out, content, replaces=False)
        return 0
    if options.action == "verify":
        return _verify(checkpoint, options)
    _print(checkpoint_document(checkpoint), options, render_checkpoint(checkpoint))
    return 0 if checkpoint.problem is None else EXIT_WRONG


def _verify(checkpoint: Checkpoint, options: argparse.Namespace) -> int:
    kept = ("kind", "version", "format", "checksum", "note", "policies", "problem", "whole")
    document = checkpoint_document(checkpoint)
    document = {key: document[key] for key in kept}
    lines = [*summarise_checkpoint(checkpoint)]
    found: tuple[Disagreement, ...] = ()
    if options.state is not None:
        state = _read_file(options.state)
        with _prefix_errors(options.state):
            check_state(state)
        with _prefix_errors(options.file):
            found = find_disagreements(checkpoint, state)
        document["differences"] = [to_builtins(each) for each in found]
        lines += format_agreement(found)
    _print(document, options, lines)
    return 0 if checkpoint.problem is None and not found else EXIT_WRONG


def _print(document: Document, options: argparse.Namespace, lines: Iterable[str]) -> None:
    sys.stdout.write(render_document(document, options.output, lambda _: "".join(f"{line}\n" for line in lines)))


def _read_file(path: str) -> Checkpoint:
    content = _read_content(path)
    with _prefix_errors(path):
        return read_checkpoint(content)


@contextmanager
def _prefix_errors(path: str) -> Iterator[None]:
    """Add the file's path to the beginning of errors about checkpoints."""
    try:
        yield
    except CheckpointError as err:
        raise CheckpointError(f"{path}: {err.message}", hint=err.hint) from err


def _read_content(path: str) -> bytes:
    content = read_named(path, MAX_BYTES)
    if content is None:
        raise CheckpointError(
            f"{path}: there is no such file", hint=f"see `ls -l {shlex.quote(str(Path(path).parent))}`"
        )
    return content


def _read_containers(path: str) -> Containers:
    try:
        rows = parse_json(_read_content(path)).by_name(lambda value: tuple(v.text() for v in value.row(2)))
    except MisfitError as err:
        raise CheckpointError(
            f"{path}: {err}",
            hint='write the file as {"CONTAINER_ID": ["POD_UID", "CONTAINER"]}, with one entry for each container',
        ) from err
    return {each: (uid, name) for each, (uid, name) in rows}
