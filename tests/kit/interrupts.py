"""What a test leaves behind whose time is over while it waits for Spark."""

from __future__ import annotations

import pyspark

__all__ = ("end_answers",)


def end_answers() -> None:
    """End the jobs of this process, and what this thread waits for. For a signal handler, before it raises.

    What it raises comes between a question to Java and its answer. The next question on that connection would wait for
    this answer, and get it: after one test without time each later one failed.
    """
    context = getattr(pyspark, "SparkContext", None) and pyspark.SparkContext._active_spark_context
    if context is None:  # or a client of Spark Connect, without Java
        return
    connection = context._gateway._gateway_client.get_thread_connection()  # type: ignore[union-attr]
    if connection is not None:
        connection.close()
    context.cancelAllJobs()  # over a new one
