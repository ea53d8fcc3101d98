"""`nodeagent report`: compares the reports of several runs of a command."""

import argparse
import shlex
import sys
from contextlib import suppress
from pathlib import Path

from nodeagent.cli.support.actions import add_actions
from nodeagent.cli.support.colour import find_terminal_width
from nodeagent.cli.support.documents import add_output_argument, render_document, write_out
from nodeagent.cli.support.exit_status import UsageError
from nodeagent.cli.support.named_files import NamedFile, named_path
from nodeagent.errors import NodeAgentError
from nodeagent.formats.syntax.json_values import MisfitError
from nodeagent.views.certificate.comparison import ReadReport, describe_comparison, read_report, render_comparison
from nodeagent.views.certificate.page import render_page
from nodeagent.views.wording.columns import fit_lines

_MOST_BYTES = 16 * 2**20
_EPILOG = """\
exit status: 0: compared; 1: a report could not be read; 64: wrong arguments

examples:
  nodeagent report compare run-1.json run-2.json run-3.json
  nodeagent report compare run-1.json run-2.json --html runs.html
  nodeagent report compare good.json bad.json -o json | jq -r '.others[].differences[].sentence'

The differences are ranked by multiples of the thresholds that the verdict of a report uses, followed by properties of the run and the node
that differ. `nodeagent job --report FILE` writes reports; the files may come from other machines.
next: nodeagent job --report FILE --repeat 10 --until-clean 3 -- COMMAND"""


class ReportError(NodeAgentError):
    """A report can't be read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    made = add_actions(
        parser, {"compare": "rank the differences between a good run and others, by their reports"}, epilog=_EPILOG
    )
    compare = made["compare"]
    compare.add_argument("good", type=NamedFile, metavar="GOOD|-", help="report of a good run; - is stdin")
    compare.add_argument("bad", type=NamedFile, nargs="+", metavar="BAD|-", help="reports of other runs")
    compare.add_argument(
        "--html", type=named_path, metavar="FILE", help="also write a page with the timeline of each run's disturbances"
    )
    add_output_argument(compare)


def run(options: argparse.Namespace) -> int:
    """Compare the reports, and print the differences.

    Raises:
        NodeAgentError: a report cannot be read, or the HTML page would replace a report.
    """
    paths = (options.good, *options.bad)
    reports = [read_file(path) for path in paths]
    if options.html is not None and any(_is_same_file(options.html, path) for path in paths):
        raise UsageError(
            f"--html {options.html} would replace one of the given reports", hint="name another file with --html"
        )
    document = describe_comparison(reports[0], reports[1:])
    sys.stdout.write(
        render_document(
            document, options.output, lambda found: fit_lines(render_comparison(found), find_terminal_width())
        )
    )
    if options.html is not None:
        write_out(options.html, render_page(reports, document).encode(), mode=0o644, option="--html")
    return 0


def _is_same_file(one: str, other: str) -> bool:
    with suppress(OSError):  # samefile fails if one of the files doesn't exist yet
        return Path(one).samefile(other)
    return False


def read_file(path: NamedFile) -> ReadReport:
    """Read and decode the report in a file.

    Raises:
        NodeAgentError: there is no such file, or it contains no report.
    """
    content = path.read(_MOST_BYTES)
    if content is None:
        raise ReportError(f"there is no file {path}", hint=f"see `ls -l {shlex.quote(str(Path(path).parent))}`")
    try:
        return read_report(content, str(path))
    except MisfitError as err:
        raise ReportError(
            f"{path} is not a report of a run: {err}",
            hint="make one with `nodeagent job --cpus 2 --memory 1Gi --report FILE -- COMMAND`",
        ) from err
