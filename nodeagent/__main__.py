"""The program: `python -m nodeagent`, and the command `nodeagent`.

A plain `job` takes a short way that loads little. Everything else loads the command line, and so do the errors of such a job.
"""

from __future__ import annotations

import gc
import sys

from nodeagent.errors import NodeAgentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodeagent.cli.commands.job import PlainOptions


def main() -> int:
    """Run the command line of this process, and return the exit status."""
    if sys.argv[1:2] == ["job"]:
        from nodeagent.cli.commands.job import read_plain_words, run_plain

        plain = read_plain_words(sys.argv[2:])
        if plain is not None:
            try:
                run_plain(plain)
            except NodeAgentError as err:
                return _report_failure(err, plain)
            except KeyboardInterrupt:
                return 130
    _add_site()
    gc.disable()  # what modules load is no garbage: the command line enables the collector before it runs the command
    from nodeagent.cli.main import main as run_command_line

    return run_command_line()


def _add_site() -> None:
    """Complete the search path of an interpreter that was started without the module `site`, as the installed command is."""
    if sys.flags.no_site:
        import site

        site.main()


def _report_failure(err: NodeAgentError, plain: PlainOptions) -> int:
    """Print the error of a job as the command line does, and return the exit status."""
    _add_site()
    from nodeagent.cli.commands.job import explain_failure
    from nodeagent.cli.main import run_reporting_errors

    def fail() -> int:
        raise explain_failure(err, plain)

    return run_reporting_errors(fail)


if __name__ == "__main__":
    sys.exit(main())
