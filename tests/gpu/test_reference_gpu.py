"""The examples in the language reference run on a GPU."""

from __future__ import annotations

import pytest

from blocknb.testing.examples import examples

EXAMPLES = {name: example for name, example in examples().items() if example is not None}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_reference_give_their_results_on_the_gpu(name):
    EXAMPLES[name].run("gpu")
