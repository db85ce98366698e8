"""The examples in the language reference run on a GPU."""

from __future__ import annotations

import pytest

from blocknb.testing.examples import examples

EXAMPLES = {name: example for name, example in examples().items() if example is not None}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_name_gives_what_it_says_on_the_gpu(name):
    EXAMPLES[name].run("gpu")
