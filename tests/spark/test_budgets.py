"""A budget over the tasks of a job; the service bills by itself, in a file."""

import asyncio
import os
import random

import pytest

from asyncudf import Budget, ResultStore, async_pandas_udf, monitor

pytestmark = pytest.mark.spark

AMOUNT = 40.0


def billed(path):
    return sum(map(float, path.read_text().split()))


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


@pytest.mark.parametrize("per", [None, "day"])
def test_a_run_tells_what_all_runs_have_spent_of_a_budget_with_a_name(spark, tmp_path, per):
    pytest.importorskip("lmdb")
    bill, store = tmp_path / "bill", ResultStore.disk(str(tmp_path / "results"))
    budget = Budget(AMOUNT, reserve=1.0, settle=lambda n, cost: cost, name="reviews", per=per)
    ask = asking(bill, budget=budget, store=store, version="1")
    for first in (0, 20):
        with monitor(spark) as run:
            spark.range(first, first + 20, 1, 4).select(ask("id").alias("cost")).collect()
    told = run.metrics["functions"][0]["budgets"]["reviews"]
    assert told["spent"] == pytest.approx(billed(bill))
    assert (told["amount"], told["unit"], bool(told["window"])) == (AMOUNT, "USD", per is not None)
    assert ' of 40 USD of "reviews" spent by all runs' in run.summary()
