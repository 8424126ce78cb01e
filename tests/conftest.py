"""What holds for all tests."""

from __future__ import annotations

import gc

import pytest
from hypothesis import HealthCheck, settings

from asyncudf._engine.loop import bridge
from tests.kit.java import start_fast
from tests.kit.loops import run_coroutine
from tests.kit.thorough import EXAMPLES, THOROUGH_EXAMPLES

# Where CI is set, hypothesis would try the same examples in each run. Here the seed is new each time, and what fails
# prints the line that plays it again. No limits by the clock: a busy machine is no bug. Each run tries few examples;
# `--hypothesis-profile=thorough` tries many, and hypothesis' plugin loads that profile after this one.
settings.register_profile(
    "asyncudf",
    max_examples=EXAMPLES,
    derandomize=False,
    print_blob=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("asyncudf"), max_examples=THOROUGH_EXAMPLES)
settings.load_profile("asyncudf")

# A busy machine may take a second for anything: an empty batch would then come before what a test reads.
bridge.SILENCE = 3600.0
start_fast()  # many short queries, and programs with a Spark of their own

# What processes side by side take first: what takes long, so that none waits for another in the end.
LONGEST = [
    "standalone", "connect", "spark/test_pages", "spark/test_examples", "spark/test_batches", "spark/test_lookup_table",
    "spark/test_sinks", "spark/test_resume", "spark/test_stopping", "spark/test_coordinator",
    "spark/test_limits_faults",
]  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """All tests of a file run in one process, and so do all that use the cluster or Spark Connect."""
    shared = {"standalone", "connect"}.intersection(getattr(item, "fixturenames", ()))
    item.add_marker(pytest.mark.xdist_group(min(shared, default=f"{item.path.parent.name}/{item.path.stem}")))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test may be a coroutine."""
    return run_coroutine(pyfuncitem)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """After the order was made random."""

    def rank(item: pytest.Item) -> int:
        group = next(item.iter_markers("xdist_group")).args[0]
        return LONGEST.index(group) if group in LONGEST else len(LONGEST)

    items.sort(key=rank)


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Without what asyncio says of a session that another test has left to the garbage collector."""
    caplog.handler.addFilter(lambda record: record.name != "asyncio" or not record.msg.startswith("Unclosed"))
    return caplog


def pytest_collection_finish() -> None:
    """Python's garbage collector looks no more at the thousands of collected tests each time that it runs."""
    gc.collect()
    gc.freeze()
