"""How often a plan calls its functions follows from what its nodes do to rows, and from what is evaluated again."""

from typing import Any

import pytest

from asyncudf._policies.planned_calls import Bounds, Flow, PlanNode, Reason, expected_seconds, planned_calls

TABLE = PlanNode(Flow.UNKNOWN, partitions=2)


def calling(child: PlanNode, name: str = "f", flow: Flow = Flow.SAME) -> PlanNode:
    return PlanNode(flow, (child,), calls=(name,), partitions=child.partitions)


def over(child: PlanNode, flow: Flow = Flow.SAME, **options: Any) -> PlanNode:
    return PlanNode(flow, (child,), **{"partitions": child.partitions, **options})


def told(root: PlanNode, rows: int | None = 10, **options: Any) -> list[tuple[Any, ...]]:
    """What each function is told to be called for: its name, at least and at most so many rows in all."""
    found = planned_calls(root, lambda node: rows, **options)
    return [(one.call, one.rows_in_all.at_least, one.rows_in_all.at_most) for one in found]


def reasons(root: PlanNode, **options: Any) -> list[tuple[Reason, ...]]:
    return [one.reasons for one in planned_calls(root, lambda node: 10, **options)]


def test_each_row_is_a_call() -> None:
    assert told(over(calling(TABLE))) == [("f", 10, 10)]
    assert told(TABLE) == []


def test_rows_behind_a_filter_on_results_are_not_known() -> None:
    root = calling(over(calling(TABLE, "below"), Flow.FEWER), "above")
    assert told(root) == [("above", 0, 10), ("below", 10, 10)]
    assert reasons(root) == [(Reason.RESULTS,), ()]


def test_what_calls_nothing_alone_is_counted() -> None:
    """A count runs the plan: never one with a function in it, in a subquery or out of sight."""
    counted: list[PlanNode] = []
    table, filtered = PlanNode(Flow.UNKNOWN), over(TABLE, Flow.FEWER)
    hidden = PlanNode(Flow.UNKNOWN, is_hidden=True)
    asking = over(table, Flow.FEWER, subqueries=(calling(filtered, "inner"),))
    root = PlanNode(Flow.SUM, (calling(asking), calling(hidden), calling(calling(table))))

    def count(node: PlanNode) -> int:
        counted.append(node)
        return 5

    found = list(planned_calls(root, count))
    assert not any(node.may_call for reader in counted for node in reader.children or (reader,))
    assert [one.rows for one in found] == [Bounds(0, 5), Bounds(5, 5), Bounds(0, None), Bounds(5, 5), Bounds(5, 5)]
    assert root.hides


@pytest.mark.parametrize(
    ("partitions", "ranges", "evaluations"),
    [(2, 2, (2, 2)), (3, 8, (2, 2)), (4, 2, (2, 3)), (0, 2, (2, 3)), (9, 1, (1, 1))],
)
def test_a_sort_evaluates_what_is_below_it_once_more(partitions: int, ranges: int, evaluations: Any) -> None:
    table = PlanNode(Flow.UNKNOWN, partitions=partitions)
    root = over(calling(table), exchange=1, samples=True, partitions=ranges)
    (one,) = planned_calls(root, lambda node: 10)
    assert (one.evaluations.at_least, one.evaluations.at_most) == evaluations
    assert (Reason.SKEWED in one.reasons) == (evaluations == (2, 3))


def test_even_partitions_are_not_sampled_again_unless_something_changes_them() -> None:
    table = PlanNode(Flow.UNKNOWN, partitions=8)
    is_even = {"is_even": lambda node: True}
    assert told(over(calling(table), exchange=1, samples=True), **is_even) == [("f", 20, 20)]
    filtered = over(over(calling(table), Flow.FEWER), exchange=1, samples=True)
    assert told(filtered, **is_even) == [("f", 20, 30)]


def test_a_shuffle_in_between_is_read_twice_and_made_once() -> None:
    shuffled = over(calling(TABLE), exchange=1)
    assert told(over(over(shuffled), exchange=2, samples=True)) == [("f", 10, 10)]


def test_equal_exchanges_are_one() -> None:
    sides = (over(calling(TABLE), exchange=1), over(calling(TABLE, "same"), exchange=1))
    assert told(PlanNode(Flow.UNKNOWN, sides)) == [("f", 10, 10)]


def test_a_product_reads_each_side_for_each_partition_of_the_other() -> None:
    other = PlanNode(Flow.UNKNOWN, partitions=7)
    root = PlanNode(Flow.UNKNOWN, (calling(TABLE, "left"), calling(other, "right")), crosses=True)
    assert told(root) == [("left", 70, 70), ("right", 20, 20)]
    unknown = PlanNode(Flow.UNKNOWN, (calling(TABLE), PlanNode(Flow.UNKNOWN)), crosses=True)
    assert told(unknown) == [("f", 10, None)]


def test_a_side_of_a_join_that_may_be_dropped_says_so() -> None:
    """Also below its exchange, where it is dropped."""
    below = over(calling(TABLE), exchange=1)
    assert reasons(PlanNode(Flow.UNKNOWN, (below, TABLE), may_drop=True)) == [(Reason.DROPPED,)]
    assert reasons(PlanNode(Flow.UNKNOWN, (below, TABLE))) == [()]


def test_a_limit_needs_as_many_rows_as_it_lets_pass() -> None:
    assert told(over(calling(TABLE), Flow.FEWER, limit=3)) == [("f", 3, 10)]
    assert told(over(over(calling(TABLE), Flow.FEWER), Flow.FEWER, limit=30)) == [("f", 10, 10)]
    assert told(over(over(calling(TABLE), exchange=1), Flow.FEWER, limit=3)) == [("f", 10, 10)], "a shuffle goes on"
    union = PlanNode(Flow.SUM, (calling(TABLE), calling(TABLE)))
    assert told(over(union, Flow.FEWER, limit=3)) == [("f", 0, 10), ("f", 0, 10)]
    assert told(calling(over(calling(TABLE), Flow.FEWER, limit=3), "above"))[0] == ("above", 3, 3)


def test_a_cache_is_filled_once_and_then_read() -> None:
    kept = over(calling(TABLE), exchange=1, is_cache=True)
    assert told(over(PlanNode(Flow.SUM, (kept, kept)), exchange=2, samples=True)) == [("f", 10, 10)]
    loaded = over(calling(TABLE), exchange=1, is_cache=True, known_rows=4)
    assert told(calling(loaded, "above")) == [("above", 4, 4), ("f", 0, 0)]
    assert told(over(kept, Flow.FEWER, limit=3)) == [("f", 0, 10)]


def test_a_row_may_come_to_nothing_from_an_aggregate_of_nothing() -> None:
    assert told(calling(over(calling(TABLE, "below"), Flow.FEWER)), rows=0)[0] == ("f", 0, 1)


def test_rows_that_nobody_can_count() -> None:
    assert told(calling(TABLE), rows=None) == [("f", 0, None)]
    assert [one.reasons for one in planned_calls(calling(TABLE), lambda node: None)] == [(Reason.UNCOUNTED,)]


def test_no_call_takes_no_time_and_a_few_take_one_latency() -> None:
    assert expected_seconds(0, 2.0, 100, 4, until_begun=1) == 0
    assert expected_seconds(3, 2.0, 100, 4) == 2.0
    assert expected_seconds(800, 2.0, 100, 4) == 4.0
    assert expected_seconds(800, 2.0, 100, 4, until_begun=1) == 4.0
    assert expected_seconds(800, 2.0, 100, 4, until_begun=79) == 81.0
