"""Who sends what to whom on two levels, and sums in which no grouping shows."""

import math
from functools import reduce
from operator import add

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.exchange.hierarchy import ExactTotal, Message, NodeLayout


def test_ranks_send_to_their_leader_and_leaders_to_rank_0() -> None:
    layout = NodeLayout((0, 0, 0, 1, 1))
    assert layout.nodes == ((0, 1, 2), (3, 4))
    assert layout.inside() == [Message(1, 0), Message(2, 0), Message(4, 3)]
    assert layout.between() == [Message(3, 0)]


def test_nodes_need_not_be_numbered_in_the_order_of_ranks() -> None:
    layout = NodeLayout((7, 2, 7, 2))
    assert layout.nodes == ((0, 2), (1, 3))
    assert layout.leaders == (0, 1)


@pytest.mark.parametrize(("num_nodes", "ranks_per_node"), [(1, 4), (4, 1), (3, 8), (128, 8)])
def test_messages_between_nodes_fall_by_the_ranks_of_a_node(
    num_nodes: int, ranks_per_node: int
) -> None:
    layout = NodeLayout.even(num_nodes, ranks_per_node)
    levels = [*layout.inside(), *layout.between()]
    # Each rank but 0 sends once, on either way.
    assert len(levels) == len(layout.flat()) == num_nodes * ranks_per_node - 1
    assert sum(map(layout.crosses, layout.flat())) == (num_nodes - 1) * ranks_per_node
    assert sum(map(layout.crosses, levels)) == num_nodes - 1
    assert not any(map(layout.crosses, layout.inside()))


FLOATS = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)


@given(st.lists(st.lists(FLOATS, max_size=8), min_size=1, max_size=6))
def test_totals_of_any_grouping_are_the_exactly_rounded_sum(groups: list[list[float]]) -> None:
    flat = [value for group in groups for value in group]
    total = reduce(add, (ExactTotal.of(group) for group in groups))
    assert total.nll_nats == math.fsum(flat)
    assert total == ExactTotal.of(flat)


def test_totals_know_the_smallest_and_largest_numbers() -> None:
    values = [5e-324, 1.7e308, -1.7e308, 0.1, 0.2]
    assert ExactTotal.of(values).nll_nats == math.fsum(values)
