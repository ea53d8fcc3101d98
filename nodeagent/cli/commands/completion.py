"""`nodeagent completion`: prints a shell's completion script, and answers the queries of this script.

When the user presses TAB, the script runs `nodeagent completion words -- WORD…`. The answer completes the last word. Its first line is the
kind of completions: words, files, directories or commands. The shell itself completes the last three kinds. Each further line contains a
word, a tab and the meaning of the word.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping

from msgspec import Struct

from nodeagent.cli.support.completion_scripts import SCRIPTS
from nodeagent.cli.support.definitions import Argument, Command, extract_command
from nodeagent.cli.support.known_names import find_named_pods, find_reservations

_QUERY = "words"
"""Argument with which a completion script asks for completions. In its place, users give the name of a shell."""
_FILES = frozenset({"FILE", "PATH", "-"})
"""Placeholders of arguments that are files. Placeholders that contain a dot, such as `A.yaml`, stand for files, too."""


class Candidates(Struct, frozen=True):
    words: tuple[tuple[str, str], ...] = ()
    """Possible words, each with its meaning. The meaning may be empty."""
    kind: str = "words"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell", type=_parse_shell, choices=(*SCRIPTS, _QUERY), metavar="|".join(SCRIPTS), help="the shell"
    )
    asked = parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    asked.required = False  # otherwise the error about a missing shell would list the hidden argument `words`, too
    parser.usage = "nodeagent completion bash|zsh|fish"
    parser.epilog = """\
exit status: 0: printed; 64: wrong arguments

examples:
  eval "$(nodeagent completion bash)"
  nodeagent completion zsh >_nodeagent
  nodeagent completion fish >nodeagent.fish

zsh looks for _nodeagent in the directories of $fpath, fish for nodeagent.fish in ~/.config/fish/completions.
`make install` sets it up for all users. Names of pods and containers come from the agent, for root and the group nodeagent.
next: nodeagent inspect, then a space and TAB, names the pods"""


def _parse_shell(text: str) -> str:
    if text not in {*SCRIPTS, _QUERY}:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(SCRIPTS)}")
    return text


def run(options: argparse.Namespace) -> int:
    """Print a completion script, or the answer to its query."""
    if options.shell != _QUERY:
        sys.stdout.write(SCRIPTS[options.shell])
        return 0
    from nodeagent.cli.parser import build_parser

    typed = options.words[1:] if options.words[:1] == ["--"] else options.words
    words = typed or [""]
    answer = find_candidates(extract_command(build_parser(words)), words)
    sys.stdout.write("\n".join([answer.kind, *(f"{word}\t{meaning}" for word, meaning in answer.words)]) + "\n")
    return 0


def find_candidates(command: Command, words: list[str]) -> Candidates:
    """Find the possible completions of the last word.

    Args:
        command: the command whose arguments are completed.
        words: the words before the cursor, without the command's name. The last word may be empty.
    """
    *before, current = _join_words(words)
    spelled = {spelling: option for option in command.options for spelling in option.spellings}
    given: dict[str, str] = {}
    place, only_places = 0, False
    wanted: list[Argument] = []
    for index, word in enumerate(before):
        if wanted:
            given[wanted.pop().dest] = word
        elif not only_places and word == "--":
            only_places = True
        elif not only_places and word.startswith("-") and word != "-":
            name, equals, value = word.partition("=")
            option = spelled.get(name)
            if option is not None and option.metavar:
                given[option.dest] = value
                wanted = [option] * (option.count - bool(equals))
        elif command.subcommands:
            inner = next((one for one in command.subcommands if one.name == word), None)
            return (
                Candidates()
                if inner is None
                else find_candidates(extract_command(inner.parser), [*before[index + 1 :], current])
            )
        elif place < len(command.places):
            argument = command.places[place]
            given[argument.dest] = word
            if argument.takes_the_rest:
                return Candidates(kind="files")
            place += not argument.repeats
    if wanted:
        return _complete_value(wanted[-1], current, given)
    if not only_places and current.startswith("-"):
        return _complete_option(spelled, current)
    if command.subcommands:
        return _filter_words(current, ((one.name, one.help) for one in command.subcommands))
    if place == len(command.places):
        return _complete_option(spelled, current)
    if command.places[place].takes_the_rest:
        return Candidates(kind="commands") if only_places else _filter_words(current, [("--", "then the command")])
    return _complete_value(command.places[place], current, given)


def _join_words(words: list[str]) -> list[str]:
    """Join the words into which bash splits an option, such as `--output`, `=` and `json`. If the last of `words` is an option's value, it
    stays a separate word, because bash completes only the value.
    """
    joined: list[str] = []
    index = 0
    while index < len(words):
        if words[index] == "=" and joined and joined[-1].startswith("--"):
            value = words[index + 1] if index + 1 < len(words) else ""
            if index + 2 < len(words):
                joined[-1] += f"={value}"
            else:
                joined.append(value)
            index += 2
        else:
            joined.append(words[index])
            index += 1
    return joined


def _complete_option(spelled: Mapping[str, Argument], current: str) -> Candidates:
    name, equals, value = current.partition("=")
    if equals:
        option = spelled.get(name)
        inside = Candidates() if option is None or not option.metavar else _complete_value(option, value, {})
        return Candidates(tuple((f"{name}={word}", meaning) for word, meaning in inside.words))
    shown = [(spelling, option) for spelling, option in spelled.items() if option.help is not None]
    return _filter_words(current, [(spelling, option.help or "") for spelling, option in shown])


def _complete_value(argument: Argument, current: str, given: Mapping[str, str]) -> Candidates:
    if argument.help is None:
        return Candidates()
    if argument.choices:
        public = argument.metavar.split("|") if "|" in argument.metavar else argument.choices
        return _filter_words(current, [(choice, "") for choice in argument.choices if choice in public])
    match argument.metavar.strip("[]…. "):
        case "POD":
            return _complete_pod(current, given)
        case metavar if metavar.startswith("POD|"):
            named = _complete_pod(current, given)
            return named if named.words else Candidates(kind=_find_kind(metavar))
        case "CONTAINER":
            pods = [pod for pod in find_named_pods(given) if given.get("pod") in {pod.name, pod.full_name}]
            return _filter_words(current, ((name, "") for pod in pods for name in pod.containers))
        case "RESERVATION":
            return _filter_words(current, ((name, "") for name in find_reservations(given)))
        case metavar:
            return Candidates(kind=_find_kind(metavar))


def _find_kind(metavar: str) -> str:
    parts = metavar.replace(" ", "|").split("|")
    if _FILES.intersection(parts) or any("." in part for part in parts):
        return "files"
    return "directories" if "DIR" in parts else "words"


def _complete_pod(current: str, given: Mapping[str, str]) -> Candidates:
    """Complete the name of a pod, preferably by its shortest unique form. If no short name matches, complete the full name
    (namespace/name).
    """
    pods = find_named_pods(given)
    names = [pod.name for pod in pods]
    short = [(pod.name if names.count(pod.name) == 1 else pod.full_name, "") for pod in pods]
    found = _filter_words(current, short)
    return found if found.words else _filter_words(current, ((pod.full_name, "") for pod in pods))


def _filter_words(current: str, words: Iterable[tuple[str, str]]) -> Candidates:
    return Candidates(tuple((word, " ".join(meaning.split())) for word, meaning in words if word.startswith(current)))
