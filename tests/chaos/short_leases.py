"""Spark's daemon of Python workers: what a killed task held of a budget is lost after 3 s, and not after a minute."""

from pyspark.daemon import manager

from asyncudf._limits import keyed_budget, shared_budget

shared_budget.BUDGET_LEASE = keyed_budget.BUDGET_LEASE = 3.0
keyed_budget.RENEW_EVERY = keyed_budget.BUDGET_LEASE / 3

if __name__ == "__main__":
    manager()
