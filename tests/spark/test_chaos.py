"""scripts/chaos runs: a job of it in the session of the tests, and with --thorough two minutes of random ones."""

import random
import time

import pandas as pd
import pytest
from hypothesis import settings
from pyspark import cloudpickle

import tests.chaos
from asyncudf import monitor
from tests.chaos.__main__ import main
from tests.chaos.checks import Job, Run, faults_of
from tests.chaos.job import Place, clean_workers, figures, run_once
from tests.chaos.services import Ledger, services
from tests.chaos.shapes import Service, Shape
from tests.kit.thorough import THOROUGH_EXAMPLES

pytestmark = [pytest.mark.spark, pytest.mark.services]

cloudpickle.register_pickle_by_value(tests.chaos)

SHAPE = Shape(
    seed=1,
    rows=200,
    distinct=100,
    entry="chain",
    options={
        "output_mode": "ordered",
        "capacity": 10,
        "on_error": "dead_letter",
        "timeout": 60.0,
        "attempt_timeout": 1.0,
        "retry": 3,
        "rate_limit": [400, 20],
        "job_capacity": 12,
        "max_calls": 1000,
    },
    service=Service(seed=1, seconds=0.01, error=0.2, hang=0.02, refuse=0.02, drop=0.05, hopeless=0.05, mercy=3),
)


def test_a_job_of_it_keeps_all_promises(spark, tmp_path):
    """Calls that fail, hang, are refused and dropped; each row is accounted for, and each limit is kept."""
    with services(tmp_path) as made:
        ledger = made.ledgers["here"] = Ledger(SHAPE)
        began = time.time()
        with monitor(spark) as run:
            run_once(spark, SHAPE, Place("here", made.url, "", "", str(tmp_path / "store"), str(tmp_path)), 1)
        rows, letters = (pd.read_parquet(tmp_path / f"{name}-1.parquet") for name in ("rows", "letters"))
        job = Job(
            SHAPE,
            ledger.calls,
            [],
            [Run(1, began, time.time(), None, figures(run), rows, letters)],
            clean_workers(spark, 2),
        )
    assert faults_of(job) == []
    assert {call.outcome for call in job.calls} >= {"ok", "error", "refused", "drop", "hopeless"}
    assert set(letters["n"]) == SHAPE.hopeless != set()


def test_random_jobs_keep_all_promises():
    """The output has the command that runs a job with a fault again."""
    if settings().max_examples < THOROUGH_EXAMPLES:
        pytest.skip("takes minutes: with --thorough")
    assert main(["--minutes", "2", "--seed", str(random.randrange(10**6))]) == 0
