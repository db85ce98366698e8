"""The samples of a quick run: which cases of a function they have."""

from __future__ import annotations

from itertools import product

from sampling import chosen, sample

CASES = {
    f"test_products[{dtype}-{m}-{options}]": {"dtype": dtype, "m": m, "options": options}
    for dtype, m, options in product(("fp16", "fp32"), range(12), ([], ["wide"]))
}


def values(names: set[str], parameter: str) -> list[str]:
    return sorted({str(CASES[name][parameter]) for name in names})


def test_a_sample_is_what_the_hash_chooses() -> None:
    assert sample(CASES, 5) == {name for name in CASES if chosen(name, 5)}
    assert sample(CASES, 10) < sample(CASES, 5) < sample(CASES, 1) == set(CASES)


def test_each_value_of_a_parameter_is_in_the_sample_and_few_cases_are_added() -> None:
    alone, whole = sample(CASES, 24), sample(CASES, 24, each=["dtype", "m", "options"])
    assert len(values(alone, "m")) < 12
    assert alone < whole
    assert all(values(whole, parameter) == values(set(CASES), parameter) for parameter in ("dtype", "m", "options"))
    assert len(whole) <= len(alone) + 12 + 2 + 2


def test_the_order_of_the_cases_does_not_change_a_sample() -> None:
    assert sample(dict(reversed(CASES.items())), 24, each=["m"]) == sample(CASES, 24, each=["m"])
