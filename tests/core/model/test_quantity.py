import pytest
from hypothesis import given, strategies as st

from nodeagent.core.model.quantity import Notation, Quantity, QuantitySyntaxError


@pytest.mark.parametrize(
    ("text", "value", "milli", "printed"),
    [
        ("0", 0, 0, "0"),
        ("2", 2, 2000, "2"),
        ("2.0", 2, 2000, "2"),
        ("1500m", 2, 1500, "1500m"),
        ("1.5", 2, 1500, "1500m"),
        ("0.1", 1, 100, "100m"),
        (".5", 1, 500, "500m"),
        ("5.", 5, 5000, "5"),
        ("+3", 3, 3000, "3"),
        ("-1500m", -1, -1500, "-1500m"),
        ("1Gi", 2**30, 2**30 * 1000, "1Gi"),
        ("1024Mi", 2**30, 2**30 * 1000, "1Gi"),
        ("1.5Gi", 3 * 2**29, 3 * 2**29 * 1000, "1536Mi"),
        ("1Ki", 1024, 1024_000, "1Ki"),
        ("0.5Ki", 512, 512_000, "512"),
        ("1000", 1000, 10**6, "1k"),
        ("1k", 1000, 10**6, "1k"),
        ("1e3", 1000, 10**6, "1e3"),
        ("1E3", 1000, 10**6, "1e3"),
        ("1E", 10**18, 10**21, "1E"),
        ("12e-3", 1, 12, "12e-3"),
        ("1n", 1, 1, "1n"),
        ("0.1n", 1, 1, "1n"),
        ("100u", 1, 1, "100u"),
        ("1500M", 1_500_000_000, 1_500_000_000_000, "1500M"),
        ("9223372036854775807", 2**63 - 1, (2**63 - 1) * 1000, "9223372036854775807"),
        ("9Ei", 2**63 - 1, (2**63 - 1) * 1000, "9223372036854775807"),
        ("1e500", 2**63 - 1, (2**63 - 1) * 1000, None),
    ],
)
def test_reads_and_prints(text: str, value: int, milli: int, printed: str | None) -> None:
    quantity = Quantity.parse(text)
    assert (quantity.value(), quantity.milli()) == (value, milli)
    if printed is not None:
        assert str(quantity) == printed


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "1\n",
        "1 Gi",
        "1gi",
        "1KI",
        "1i",
        "Gi",
        "1.1.M",
        "1+1",
        "0x10",
        "1e",
        "1e+",
        "--1",
        "∞",
        "١",
        "nan",
        "inf",
        "1_000",
        "1" * 65,
    ],
)
def test_refuses_what_is_no_quantity(text: str) -> None:
    with pytest.raises(QuantitySyntaxError, match="quantities must match the regular expression"):
        Quantity.parse(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", 2),
        ("1Gi", 2**30),
        ("10Ti", 10 * 2**40),
        ("100Ti", None),  # more digits than the fast path takes
        ("1Pi", None),
        ("1.5Gi", None),
        ("1.0Gi", None),
        ("1.Gi", 2**30),
        ("2.0", None),
        ("2000m", None),
        ("1e3", 1000),
        ("1500M", 1_500_000_000),
        ("1500m", None),
        ("1000000000000000000", None),  # 19 digits
        ("999999999999999999", 999_999_999_999_999_999),
    ],
)
def test_as_int64_is_kubernetes(text: str, number: int | None) -> None:
    assert Quantity.parse(text).as_int64() == number


@pytest.mark.parametrize(
    ("text", "whole"),
    [("2", True), ("2000m", True), ("2.0", True), ("1500m", False), ("1.0001", False), ("1999.9999m", True)],
)
def test_integral_cpu_amounts_are_judged_in_thousandths(text: str, whole: bool) -> None:
    assert Quantity.parse(text).is_whole() is whole


@pytest.mark.parametrize(
    ("text", "rounded"), [("1u", "1m"), ("1.0001", "1001m"), ("1500m", "1500m"), ("-1u", "0"), ("1Gi", "1Gi")]
)
def test_the_api_server_rounds_up_to_thousandths(text: str, rounded: str) -> None:
    assert str(Quantity.parse(text).rounded_up_to_milli()) == rounded


@pytest.mark.parametrize(
    ("left", "right", "printed"),
    [
        ("1Gi", "512Mi", "1536Mi"),
        ("0", "1Gi", "1Gi"),
        ("1Gi", "0", "1Gi"),
        ("1Gi", "1000", "1073742824"),
        ("500m", "500m", "1"),
        ("1Ki", "24", "1048"),
    ],
)
def test_a_sum_is_printed_like_its_first_addend_that_is_not_zero(left: str, right: str, printed: str) -> None:
    assert str(Quantity.parse(left) + Quantity.parse(right)) == printed


quantities = st.builds(
    Quantity.parse,
    st.builds(
        "{}{}{}".format,
        st.integers(-(10**12), 10**12),
        st.sampled_from(["", ".5", ".25", ".001"]),
        st.sampled_from(["", "n", "u", "m", "k", "M", "Ki", "Mi", "Gi", "e2", "e-3", "E1"]),
    ),
)


@given(quantities)
def test_printing_keeps_the_amount(quantity: Quantity) -> None:
    assert Quantity.parse(str(quantity)).nano == quantity.nano


@given(quantities)
def test_the_printed_form_is_a_fixed_point(quantity: Quantity) -> None:
    once = Quantity.parse(str(quantity))
    assert str(Quantity.parse(str(once))) == str(once)
    assert Quantity.parse(str(once)) == once


@given(
    st.lists(quantities | st.just(Quantity.parse("1Gi")) | st.just(Quantity.parse("1000000P")), min_size=1, max_size=3)
)
def test_what_is_stored_is_read_back_as_it_was(addends: list[Quantity]) -> None:
    """Sums too, which may be printed without the suffix that their addends had."""
    stored = sum(addends[1:], start=addends[0]).as_stored()
    assert Quantity.parse(str(stored)) == stored


@given(st.text(max_size=70))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        quantity = Quantity.parse(text)
    except QuantitySyntaxError:
        return
    assert isinstance(quantity.notation, Notation)
    assert abs(quantity.value()) <= 2**63 - 1


def test_equal_texts_share_one_value() -> None:
    assert Quantity.parse("1536Mi") is Quantity.parse("1536Mi")
