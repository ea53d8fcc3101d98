"""Reader of the nodes named on the command line: captures in files, and hosts, which are asked over ssh in parallel."""

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from nodeagent.cli.support.named_files import NamedFile, read_named
from nodeagent.cli.support.node.copied_node import view_capture
from nodeagent.cli.support.node.selected_machine import SourceError, decode_machine_file
from nodeagent.cli.support.progress import Progress
from nodeagent.errors import NodeAgentError
from nodeagent.formats.capture import MAX_BYTES
from nodeagent.tools.fleet.nodes import FleetNode, UnreadNode, name_apart
from nodeagent.tools.fleet.ssh import run_on_host

CAPTURE = "nodeagent capture"


def is_host(word: NamedFile) -> bool:
    """Tell whether a word names a host. A host has no slash, doesn't end in .json, and isn't an existing file."""
    if word.startswith("ssh://"):
        return True
    return not (word.is_stdin or "/" in word or word.endswith(".json") or Path(word).exists())


def read_nodes(options: argparse.Namespace) -> tuple[tuple[FleetNode, ...], tuple[UnreadNode, ...]]:
    """Read all nodes in the order of the command line. Return the readable nodes, and the unreadable nodes with the reasons."""
    words: Sequence[NamedFile] = options.nodes
    found: dict[int, FleetNode | UnreadNode] = {}
    with Progress("nodes", len(words)) as progress:
        for place, content in _read_contents(words, options):
            found[place] = _decode_node(words[place], content, options.config)
            progress.step()
    sort_devices = [found[place] for place in range(len(words))]
    nodes = name_apart(one for one in sort_devices if isinstance(one, FleetNode))
    return nodes, tuple(one for one in sort_devices if isinstance(one, UnreadNode))


def _read_contents(
    words: Sequence[NamedFile], options: argparse.Namespace
) -> Iterator[tuple[int, bytes | NodeAgentError]]:
    """Yield each node's capture or error. Files are read while the hosts prepare their answers."""
    hosts = [place for place, word in enumerate(words) if is_host(word)]
    ask = partial(run_on_host, command=options.remote, within_seconds=options.timeout, max_bytes=MAX_BYTES)
    executor = ThreadPoolExecutor(min(options.parallel, max(1, len(hosts))))
    try:
        asked: dict[Future[bytes], int] = {executor.submit(ask, words[place]): place for place in hosts}
        for place, word in enumerate(words):
            if place not in hosts:
                yield place, _read_file(word)
        for done in as_completed(asked):
            err = done.exception()
            if err is not None and not isinstance(err, NodeAgentError):
                raise err
            yield asked[done], done.result() if err is None else err
    finally:
        executor.shutdown(cancel_futures=True)


def _read_file(path: NamedFile) -> bytes | NodeAgentError:
    try:
        content = read_named(path, MAX_BYTES)
    except NodeAgentError as err:
        return err
    if content is None:
        return SourceError("there is no such file", hint="make one with `nodeagent capture --out FILE`")
    return content


def _decode_node(word: NamedFile, content: bytes | NodeAgentError, config: str | None) -> FleetNode | UnreadNode:
    if isinstance(content, NodeAgentError):
        return _create_unread_node(word, content)
    try:
        topology, capture = decode_machine_file(content, word)
        agent = None if capture is None else capture.agent
        view = None
        if agent is not None or config is not None:
            view = view_capture(topology, capture, word, config if agent is None else None)
    except NodeAgentError as err:
        return _create_unread_node(word, err)
    hostname = "" if capture is None else capture.hostname
    name = hostname or (word if is_host(word) else Path(word).name.removesuffix(".json"))
    return FleetNode(name, word, topology, capture, view)


def _create_unread_node(word: NamedFile, err: NodeAgentError) -> UnreadNode:
    return UnreadNode(word, err.message.removeprefix(f"{word}: "), err.hint)
