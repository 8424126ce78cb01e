"""Spark's daemon of Python workers: what a killed task held of a budget is lost after 3 s, and not after a minute."""

from pyspark.daemon import manager

from asyncudf._limits.budgets import job, keyed

job.BUDGET_LEASE = keyed.BUDGET_LEASE = 3.0
keyed.RENEW_EVERY = keyed.BUDGET_LEASE / 3

if __name__ == "__main__":
    manager()
