"""A budget over the tasks of a job; the service bills by itself, in a file that outlives whoever is killed."""

import asyncio
import os
import random
import signal

import pytest

from asyncudf import Budget, async_pandas_udf, monitor
from tests.kit.drivers import HEAD, driver
from tests.kit.programs import run_program

from .conftest import until

pytestmark = pytest.mark.spark

AMOUNT = 40.0
PROGRAM = """
import random

def billing(path, **options):
    @async_pandas_udf("double", capacity=5, **options)
    async def ask(n: int) -> float:
        cost = random.random()
        file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(file, f"{cost}\\n".encode())
        os.close(file)
        await asyncio.sleep(0.02 + random.random() * 0.02)
        if n % 10 == 3:
            raise BilledError(cost)
        return cost
    return ask

class BilledError(Exception):
    pass

def settle(n, outcome):
    return outcome.args[0] if isinstance(outcome, BilledError) else outcome

def ask_all(spark, path, store, amount):
    budget = Budget(amount, reserve=1.0, settle=settle, name=path)
    ask = billing(path, budget=budget, on_spent="null", on_error="null", store=ResultStore.disk(store), version="1")
    rows = spark.range(0, 400, 1, 8).select(ask("id").alias("cost")).collect()
    print(sum(row.cost is not None for row in rows))
"""


def billed(path):
    return sum(map(float, path.read_text().split())) if path.exists() else 0.0


def asking(path, **options):
    @async_pandas_udf("double", capacity=5, **options)
    async def ask(n: int) -> float:
        cost = random.random()
        file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(file, f"{cost}\n".encode())
        os.close(file)
        await asyncio.sleep(0.01)
        return cost

    return ask


@pytest.mark.promise("budgets")
def test_all_tasks_together_spend_no_more_than_the_amount(spark, tmp_path):
    bill = tmp_path / "bill"
    ask = asking(bill, budget=Budget(AMOUNT, reserve=1.0, settle=lambda n, cost: cost), on_spent="null")
    with monitor(spark) as run:
        rows = spark.range(0, 400, 1, 8).select(ask("id").alias("cost")).collect()
    done = [row.cost for row in rows if row.cost is not None]
    assert billed(bill) == pytest.approx(sum(done))
    assert AMOUNT - 1.0 < billed(bill) <= AMOUNT
    assert run.metrics["functions"][0]["spent"] == {"USD": pytest.approx(billed(bill))}


def test_the_job_ends_with_one_message(spark, tmp_path, spark_error):
    ask = asking(tmp_path / "bill", budget=Budget(AMOUNT, reserve=1.0, settle=lambda n, cost: cost))
    error = spark_error(spark.range(0, 400, 1, 8).select(ask("id")))
    assert "ask has spent 39" in error
    assert "of its budget of 40 USD, and the next call may cost 1" in error


def test_a_driver_that_is_killed_and_a_run_that_goes_on(spark, tmp_path):
    """What the killed tasks had reserved is lost, and nothing is billed beyond the amount."""
    bill, store = tmp_path / "bill", tmp_path / "store"
    begun = f"ask_all(session(SparkSession.builder.master('local[4]')), {str(bill)!r}, {str(store)!r}, {AMOUNT})"
    with driver(PROGRAM + begun) as job:
        until(lambda: billed(bill) > 10.0, "some calls are billed")
        assert job.poll() is None
        os.killpg(job.pid, signal.SIGKILL)
    again = tmp_path / "again.py"
    again.write_text(
        f"{HEAD}\n{PROGRAM}\nask_all(session(SparkSession.builder), {str(bill)!r}, {str(store)!r}, {AMOUNT})"
    )
    answered = int(run_program(spark, again, folder=tmp_path).strip())
    assert answered > 10
    lost = 4 * 2 * 5.0  # four tasks, five calls in flight each, and as much again that they may hold
    assert AMOUNT - lost - 1.0 < billed(bill) <= AMOUNT
