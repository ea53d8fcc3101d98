"""The docs' first page, typed by a newcomer where nodeagent never was: each line prints what the page promises."""

import re
import time

import pytest

from integration.guest.guest import Guest
from integration.installed import traces, uninstall
from integration.node import Node
from integration.pages import FIRST_PAGE, blocks_of
from integration.reader import HOME, Reader
from tests.support.figures import Recorder, report

CHECKOUT = f"{HOME}/checkout"
JOB = "sudo nodeagent job"
VERDICT = r"\S+: (clean|disturbed: \S.*|unknown)"
PRINTED = {
    "sudo make install": "start it with: systemctl enable --now nodeagent",
    "sudo systemctl enable --now nodeagent": "",
    "nodeagent check --for benchmark || true": r"^ *ok\b",
    f"{JOB} --cpus 2 --memory 64Mi --wait=30m --max-time 10m": rf"^[0-9a-f]{{32}}  /usr/bin/env\n(?s:.*){VERDICT}",
    "sudo nodeagent queue": "no job runs, and none waits",
    "grep verdict": r'"verdict": "(clean|disturbed|unknown)"',
    f"{JOB} --cpus 2 --memory 64Mi --report /tmp/ours.json": rf"{VERDICT}(?s:.*){VERDICT}",
    "nodeagent report compare": r"^good: /tmp/ours-1.json: \S+ s, \w+$(?s:.*)^/tmp/ours-2.json: \S+ s, \w+",
}
"""A pattern of what a line prints, by the line's beginning."""


@pytest.fixture(params=["two_sockets", "four_nodes"])
def node(request: pytest.FixtureRequest) -> Node:
    guest: Guest = request.getfixturevalue(request.param)
    return Node(guest)


@pytest.mark.long  # the short form is that of test_documentation.py, with nodeagent installed
@pytest.mark.reinstalls
def test_a_newcomer_gets_a_certificate_by_the_first_page(node: Node, record_property: Recorder) -> None:
    lines = [line.partition("  #")[0] for block in blocks_of(FIRST_PAGE) for line in block.text.splitlines()]
    patterns = [[pattern for begin, pattern in PRINTED.items() if line.startswith(begin)] for line in lines]
    assert [len(found) for found in patterns] == [1] * len(PRINTED), (
        "each line of the page has a pattern, and each pattern a line"
    )
    uninstall(node)
    assert traces(node) == []
    reader = Reader(node)
    reader.has_wheels()
    node.run(f"cp -r /usr/src/nodeagent {CHECKOUT} && chown -R reader: {CHECKOUT}")

    seconds = []
    for line, (pattern,) in zip(lines, patterns, strict=True):
        began = time.monotonic()
        done = reader.ends(line, directory=CHECKOUT)
        seconds.append(time.monotonic() - began)
        print(f"$ {line}\n{done.stdout}{done.stderr}")
        assert re.search(pattern, done.stdout + done.stderr, re.MULTILINE), f"$ {line}\n{done.stdout}{done.stderr}"

    page = node.guest.get("/tmp/runs.html").decode()
    assert len(re.findall("<svg|No timeline shows a disturbance", page)) == 2, (
        "each run has its timeline, or nothing to draw"
    )
    report(
        record_property,
        f"first page on {node.guest.image.release}: {sum(seconds):.0f} s of commands, {seconds[0]:.0f} s of them the installation",
    )
