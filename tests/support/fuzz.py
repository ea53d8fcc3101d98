"""Throws damaged input at everything that reads what others wrote.

`python -m tests.support.fuzz [--executions N] [--seconds S] [TARGET …]`

An input joins the corpus when it draws an answer that none has drawn before: another refusal, another shape of what is accepted. Corpus,
counts and what failed are kept in .cache/fuzz, so that a run goes on where the last one ended.
"""

import argparse
import hashlib
import json
import random
import re
import resource
import sys
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import fuzz_targets
from tests.support.figures import keep
from tests.support.fuzz_targets import Target

ROOT = Path(__file__).parents[2]

KEPT = ROOT / ".cache" / "fuzz"
MOST_BYTES = 8192
MOST_KEPT = 1000
MOST_SECONDS = 2.0
"""Of processor time, for one input: what takes longer is a way to hold the agent up."""
_NUMBER = re.compile(rb"[0-9]+")
_NUMBERS = (
    b"0",
    b"1",
    b"-1",
    b"255",
    b"4095",
    b"4096",
    b"65536",
    b"2147483648",
    b"9223372036854775807",
    b"18446744073709551616",
    b"9" * 40,
)
_BYTES = (
    b"\0",
    b"\xff",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\x1b[2J",
    b"\r",
    b"\n",
    b"\t",
    b"../",
    b"/",
    b"\\ud800",
    b"\\u0000",
    b"\xe2\x80\xae",
)
BATCH = 500
LONG = 10_000_000
"""Executions of the long run, over all targets."""


@dataclass
class Failure(Exception):  # noqa: N818 - what a target did, not what went wrong here
    """A target did not keep to its rules."""

    target: str
    content: bytes
    why: str

    def __str__(self) -> str:
        return f"{self.target}: {self.why}\ninput: {self.content!r}"


@dataclass
class Campaign:
    """One target, and what has been tried on it."""

    target: Target
    executions: int = 0
    seconds: float = 0.0
    slowest_seconds: float = 0.0
    corpus: list[bytes] = field(default_factory=list)
    answers: set[Hashable] = field(default_factory=set)
    on_new: Callable[[bytes], None] = lambda _content: None

    def begin(self, kept: list[bytes] | None = None) -> None:
        for content in [*self.target.seeds, *(kept or [])]:
            self.answers.add(self._tried(content))
            self.corpus.append(content)

    def run(self, executions: int) -> None:
        """Try that many inputs more.

        Raises:
            Failure: one of them broke a rule.

        """
        dice = random.Random(f"{self.target.name} {self.executions}")
        for _ in range(executions):
            content = self._mutated(dice)
            answer = self._tried(content)
            if answer not in self.answers and len(self.corpus) < MOST_KEPT:
                self.answers.add(answer)
                self.corpus.append(content)
                self.on_new(content)

    def _tried(self, content: bytes) -> Hashable:
        began = time.process_time()
        try:
            return self.target.read(content)
        except Exception as err:
            raise Failure(self.target.name, content, f"{type(err).__name__}: {err}") from err
        finally:
            took = time.process_time() - began
            self.executions += 1
            self.seconds += took
            self.slowest_seconds = max(self.slowest_seconds, took)
            if took > MOST_SECONDS:
                raise Failure(self.target.name, content, f"took {took:.1f} s")

    def _mutated(self, dice: random.Random) -> bytes:
        # Half of the time of the latest finds: they are the least explored.
        recent = dice.random() < 0.5
        content = dice.choice(self.corpus[-20:] if recent else self.corpus)
        for _ in range(dice.choice((1, 1, 1, 2, 3, 5))):
            content = self._changed(content, dice)
        return content[:MOST_BYTES]

    def _changed(self, content: bytes, dice: random.Random) -> bytes:
        size = len(content)
        at = dice.randrange(size + 1)
        end = min(size, at + dice.choice((1, 1, 2, 4, 8, 16, 64)))
        match dice.randrange(11):
            case 0 if at < size:
                return content[:at] + bytes([content[at] ^ 1 << dice.randrange(8)]) + content[at + 1 :]
            case 1:
                return content[:at] + content[end:]
            case 2:
                return content[:at] + content[at:end] * dice.choice((2, 3, 20)) + content[end:]
            case 3 | 4 if numbers := list(_NUMBER.finditer(content)):
                found = dice.choice(numbers)
                return content[: found.start()] + dice.choice(_NUMBERS) + content[found.end() :]
            case 5:
                return content[:at] + dice.choice(_BYTES) + content[at:]
            case 6:
                other = dice.choice(self.corpus)
                start = dice.randrange(len(other) + 1)
                return content[:at] + other[start : start + dice.choice((4, 16, 64, 256))] + content[end:]
            case 7:
                to = dice.randrange(size + 1)
                return content[:at] + content[to : to + (end - at)] + content[end:]
            case _ if self.target.words:
                word = dice.choice(self.target.words)
                return content[:at] + word + content[at if dice.random() < 0.5 else end :]
            case _:
                return content[:at] + bytes([dice.randrange(256)]) + content[at:]


class Kept:
    """What is known of a target from earlier runs, in a directory of its own."""

    def __init__(self, directory: Path, target: Target) -> None:
        self.directory = directory / target.name
        self.directory.mkdir(parents=True, exist_ok=True)
        self.counts = self.directory / "counts.json"
        known = json.loads(self.counts.read_text()) if self.counts.exists() else {}
        self.campaign = Campaign(target, **known, on_new=lambda content: self._write("corpus", content))
        (self.directory / "corpus").mkdir(exist_ok=True)

    def begin(self) -> None:
        self.campaign.begin([path.read_bytes() for path in sorted((self.directory / "corpus").iterdir())])

    def run(self, executions: int) -> None:
        try:
            self.campaign.run(executions)
        except Failure as err:
            sys.stderr.write(f"kept as {self._write('failed', err.content)}\n")
            raise
        finally:
            campaign = self.campaign
            counts = {
                "executions": campaign.executions,
                "seconds": round(campaign.seconds, 3),
                "slowest_seconds": round(campaign.slowest_seconds, 3),
            }
            self.counts.write_text(json.dumps(counts))

    def _write(self, kind: str, content: bytes) -> Path:
        path = self.directory / kind / hashlib.sha256(content).hexdigest()[:16]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return path


def figures(campaigns: list[Campaign]) -> str:
    """Give what was reached, in one line a target."""
    total = sum(c.executions for c in campaigns)
    rows = [
        f"{c.executions:>10} inputs of {c.target.name}: {len(c.corpus)} kept, the slowest took {c.slowest_seconds * 1000:.0f} ms"
        for c in campaigns
    ]
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return "\n".join(
        [f"fuzzing: {total} executions over {len(campaigns)} targets; this process took {peak_mib} MiB", *rows]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz.py", description=__doc__)
    parser.add_argument("--executions", type=int, default=LONG, help="to reach in all, those of earlier runs included")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="to stop after, wherever it is")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=" ".join(t.name for t in fuzz_targets.TARGETS))
    options = parser.parse_args()
    chosen = [t for t in fuzz_targets.TARGETS if t.name in options.targets or not options.targets]
    known = [Kept(KEPT, target) for target in chosen]
    until = time.monotonic() + options.seconds
    share, failed = -(-options.executions // len(known)), False
    while time.monotonic() < until:
        left = [each for each in known if each.campaign.executions < share]
        if not left:
            break
        for each in left:
            try:
                if not each.campaign.corpus:
                    each.begin()
                each.run(min(BATCH, share - each.campaign.executions))
            except Failure as err:
                sys.stderr.write(f"{err}\n")
                failed = True
                known.remove(each)
    keep("fuzzing", "all runs", executions=sum(each.campaign.executions for each in known), targets=len(known))
    sys.stdout.write(f"{figures([each.campaign for each in known])}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
