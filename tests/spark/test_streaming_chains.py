"""A chain over an unbounded table runs; its side outputs need foreachBatch."""

import pytest

from asyncudf import DEAD_LETTERS, LATENCIES, AsyncStream, FunctionError, RuntimeContext, async_pandas_udf
from tests.kit.frames import tuples
from tests.kit.spark_functions import LOG

pytestmark = pytest.mark.spark


@async_pandas_udf("length int", on_error="dead_letter")
async def measured(line):
    if line == "bad":
        raise ValueError(line)
    return {"length": len(line)}


async def shouted(line: str, context: RuntimeContext) -> str:
    context.output(LOG, {"id": 1, "note": line})
    return line.upper()


@pytest.fixture
def lines(lines_of):
    return lines_of("one\nbad\n", "three\n")


@pytest.mark.promise("structured streaming")
def test_a_chain_runs_in_a_streaming_query(spark, stream_of, lines, to_its_end):
    stream = stream_of(lines).filter(lambda row: row["line"] != "bad").ordered_wait(shouted)
    stream = stream.unordered_wait(measured, on_error="raise")
    assert stream.isStreaming
    to_its_end(stream.writeStream.format("memory").queryName("chained_lines"))
    assert sorted(tuples(spark.table("chained_lines"))) == [("one", "ONE", 3), ("three", "THREE", 5)]


IN_A_STREAM = {
    "dead letters": lambda s: s.ordered_wait(measured).side_output(DEAD_LETTERS).to_df(),
    "the rows beside dead letters": lambda s: s.ordered_wait(measured).to_df(),
    "latencies": lambda s: s.ordered_wait(shouted).side_output(LATENCIES).to_df(),
    "a tag": lambda s: s.ordered_wait(shouted).side_output(LOG).to_df(),
    "several results": lambda s: AsyncStream.collect(a=s, b=s.map(lambda row: row)),
}


@pytest.mark.parametrize("what", IN_A_STREAM)
def test_side_outputs_of_a_streaming_dataframe_are_refused(lines, stream_of, what):
    stream = stream_of(lines, latency_interval=1 if what == "latencies" else None)
    with pytest.raises(FunctionError, match=r"streaming DataFrame cannot be kept.*foreachBatch\(f\) with AsyncStream"):
        IN_A_STREAM[what](stream)


@pytest.mark.promise("foreachBatch")
def test_foreach_batch_has_side_outputs(spark, lines, to_its_end, journal, tmp_path):
    async def measured_once(line: str) -> int:
        journal.write("call", line)
        return await measured.__wrapped__(line)

    def write(batch, number):
        with AsyncStream(batch).ordered_wait(measured_once, returnType="length int", on_error="dead_letter") as stream:
            stream.write.mode("append").parquet(str(tmp_path / "main"))
            stream.side_output(DEAD_LETTERS).write.mode("append").parquet(str(tmp_path / "letters"))

    to_its_end(lines.writeStream.foreachBatch(write))
    assert sorted(tuples(spark.read.parquet(str(tmp_path / "main")))) == [("one", 3), ("three", 5)]
    assert tuples(spark.read.parquet(str(tmp_path / "letters")).select("line", "error.type")) == [("bad", "ValueError")]
    assert sorted(journal.lines) == ["call bad", "call one", "call three"]
