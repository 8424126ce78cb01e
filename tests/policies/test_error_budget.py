"""A budget of failures is a count or a share, and says when it is spent what went wrong."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncudf._limits.health.option import ErrorBudget, Failures


def test_the_error_names_what_went_wrong_most() -> None:
    failures = Failures()
    failures.add(1000, {"KeyError": 3, "TimeoutError": 1020}, ["KeyError: 'a'", "KeyError: 'b'"])
    failures.add(100, {f"E{i}": 1 for i in range(5)}, ["TimeoutError: no result", "E4: x"])
    assert ErrorBudget.of(0.02).message("weather", failures) == (
        "1,028 of 1,100 rows of weather failed, more than max_failures= allows (2% may): "
        "TimeoutError (1,020), KeyError (3), E0 (1), E1 (1), E2 (1), others (2)\n"
        "  for example KeyError: 'a'\n  for example KeyError: 'b'\n  for example TimeoutError: no result"
    )
    alike = Failures(9, 9, failures.types, ["E4: x", "E4: x"])
    assert ErrorBudget.of(5).message("weather", alike).count("for example") == 1
    assert "(0.001% may)" in ErrorBudget.of(0.00001).message("weather", failures)
    assert "(5 may)" in ErrorBudget.of(5).message("weather", failures)


COUNTS = st.builds(
    lambda rows, types, examples: (rows + sum(types.values()), types, examples),
    st.integers(0, 1000),
    st.dictionaries(st.sampled_from("ABC"), st.integers(1, 9)),
    st.lists(st.text(max_size=3), max_size=5),
)


@given(st.lists(COUNTS, max_size=6), st.integers(0, 6))
def test_tasks_add_up_to_the_job(counts: list[tuple[int, dict[str, int], list[str]]], cut: int) -> None:
    alone, job, tasks = Failures(), Failures(), (Failures(), Failures())
    for number, count in enumerate(counts):
        alone.add(*count)
        tasks[number >= cut].add(*count)
    for task in tasks:
        job.add(task.rows, task.types, task.examples)
    assert (job.rows, job.failed, job.types) == (alone.rows, alone.failed, alone.types)
    assert job.failed <= job.rows
    assert len(job.examples) <= 3
