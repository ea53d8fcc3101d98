"""The program: `python -m nodeagent`, and the command `nodeagent`.

A `job` with simple options runs without the argument parser, so that it starts fast. All other commands load the whole command line, and so
does a job that fails.
"""

from __future__ import annotations

import gc
import sys

from nodeagent.errors import NodeAgentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodeagent.cli.commands.job import PlainOptions


def main() -> int:
    """Run the command line with this process's arguments, and return the exit status."""
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
    gc.disable()  # loading modules creates no garbage; the command line enables the collector before it runs the command
    from nodeagent.cli.main import main as run_command_line

    return run_command_line()


def _add_site() -> None:
    """Load the module `site` if Python was started without it (`-S`). The installed command starts Python with `-S`, because a plain `job`
    doesn't need `site`.
    """
    if sys.flags.no_site:
        import site

        site.main()


def _report_failure(err: NodeAgentError, plain: PlainOptions) -> int:
    """Print the error of a job in the format of all commands, and return the exit status."""
    _add_site()
    from nodeagent.cli.commands.job import explain_failure
    from nodeagent.cli.main import run_reporting_errors

    def fail() -> int:
        raise explain_failure(err, plain)

    return run_reporting_errors(fail)


if __name__ == "__main__":
    sys.exit(main())
