"""Decoder of the JSON reports of rt-tests' `oslat` and `cyclictest`. Both programs count in whole microseconds."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from nodeagent.formats.syntax.json_values import JsonValue, MisfitError, parse_json

LONGEST_US = 10_000
"""Longest delay in cyclictest's histogram, in microseconds."""
_MAX_DIGITS = 10


class LatencyReportError(ValueError):
    """The report is not in the tool's format."""


class Delays(Struct, frozen=True):
    """Delays of threads: the number of delays by duration."""

    worst_us: int
    histogram: tuple[tuple[int, int], ...]
    """Pairs of a duration in microseconds and the number of delays of this duration, in ascending order. In oslat's report, the last
    pair also counts all longer delays.
    """
    beyond: int = 0
    """Number of delays that are longer than the histogram's last duration."""

    @property
    def samples(self) -> int:
        return sum(times for _, times in self.histogram) + self.beyond

    def at_least(self, us: int) -> int:
        """Return the number of delays of at least this duration."""
        return sum(times for found_us, times in self.histogram if found_us >= us) + self.beyond

    def quantile(self, permille: int) -> int | None:
        """Return the duration in microseconds that `permille` thousandths of the delays don't exceed. None means that this duration is
        beyond the histogram.
        """
        rest = -(-self.samples * permille // 1000)
        for us, times in self.histogram:
            rest -= times
            if rest <= 0:
                return us
        return None


DelaysByCpu = Mapping[int, Delays]


def combine_delays(found: Iterable[Delays]) -> Delays:
    """Combine the delays of one or more CPUs."""
    found = tuple(found)
    times: dict[int, int] = {}
    for one in found:
        for us, count in one.histogram:
            times[us] = times.get(us, 0) + count
    return Delays(max(one.worst_us for one in found), tuple(sorted(times.items())), sum(one.beyond for one in found))


def parse_oslat(text: bytes) -> DelaysByCpu:
    """Decode oslat's report. An iteration of oslat's busy loop is delayed only if another task or an interrupt ran meanwhile.

    Raises:
        LatencyReportError: the report is not in oslat's format.
    """
    return _parse_report(text, samples=None)


def parse_cyclictest(text: bytes) -> DelaysByCpu:
    """Decode cyclictest's report with the delays of threads that woke up.

    Raises:
        LatencyReportError: the report is not in cyclictest's format.
    """
    return _parse_report(text, samples="cycles")


def _parse_report(text: bytes, *, samples: str | None) -> DelaysByCpu:
    """Decode a report. `samples` is the field with the number of all delays. None means that the histogram contains all delays."""
    try:
        threads = parse_json(text).field("thread").by_name(lambda thread: _parse_thread(thread, samples))
    except MisfitError as err:
        raise LatencyReportError(str(err)) from err
    if not threads:
        raise LatencyReportError("thread: must contain at least one thread")
    return dict(sorted(found for _, found in threads))


def _parse_thread(thread: JsonValue, samples: str | None) -> tuple[int, Delays]:
    histogram = decode_histogram(thread.field("histogram"))
    counted = sum(times for _, times in histogram)
    beyond = 0 if samples is None else max(0, thread.field(samples).whole() - counted)
    return thread.field("cpu").whole(), Delays(thread.field("max").whole(), histogram, beyond)


def decode_histogram(value: JsonValue) -> tuple[tuple[int, int], ...]:
    """Decode the number of delays by duration, in the tools' reports and in earlier documents.

    Raises:
        MisfitError: the value isn't a histogram.
    """
    return tuple(
        sorted((_parse_microseconds(value, name), times) for name, times in value.by_name(JsonValue.whole) if times)
    )


def _parse_microseconds(value: JsonValue, name: str) -> int:
    if not (name.isascii() and name.isdigit() and len(name) <= _MAX_DIGITS):
        raise value.misfit("an object with microseconds as keys")
    return int(name)
