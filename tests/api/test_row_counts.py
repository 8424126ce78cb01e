"""What Spark counts beside a query."""

import threading
from types import SimpleNamespace

import pytest

from asyncudf import AsyncUDFError
from asyncudf._spark import result_table
from asyncudf._spark.result_table import observed


class Silent:
    """An Observation of a query whose end Spark has dropped from its queue of events."""

    def __init__(self):
        self.ends = threading.Event()

    @property
    def get(self):
        self.ends.wait()


def test_what_was_observed_is_given():
    assert observed(SimpleNamespace(get={"rows": 3})) == {"rows": 3}


@pytest.mark.parametrize("error", [ValueError("dropped"), TimeoutError("dropped")])
def test_its_errors_are_those_of_spark(error):
    class Failing:
        @property
        def get(self):
            raise error

    with pytest.raises(type(error), match="dropped"):
        observed(Failing())


def test_spark_that_does_not_tell_it_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(result_table, "LONGEST", 0.01)
    silent = Silent()
    with pytest.raises(AsyncUDFError, match=r"raise spark\.scheduler\.listenerbus\.eventqueue\.capacity"):
        observed(silent)
    silent.ends.set()
