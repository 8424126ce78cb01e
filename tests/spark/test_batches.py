"""submit and collect on Spark: each row is once a result or a dead letter, and a killed process is gone on with.

What the service may do meanwhile, and what is killed where, tests/batches tries without Spark.
Processes that are killed for real are in test_resume.
"""

import json
import os
import time
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web
from openai import OpenAI
from pyspark import TaskContext
from pyspark.sql import functions as sf

from asyncudf import (
    AsyncTimeoutError,
    AsyncUDFError,
    Budget,
    FunctionError,
    OptionError,
    ResultStore,
    RuntimeContext,
    Submission,
    batch_function,
    submit,
)
from asyncudf.__main__ import main
from asyncudf._batches.state import StateFolder
from asyncudf.batches import OpenAIBatches
from tests.kit.batch_services import Findable, Jobs, billing
from tests.kit.provider_batches import OpenAIServer, providing
from tests.kit.sail import HAS_SAIL

pytestmark = pytest.mark.spark


def read(answer: dict) -> dict:
    return {"value": answer["value"], "label": answer["label"]}


@batch_function("value bigint, label string", parse=read)
def ask(n: int, context: RuntimeContext) -> dict:
    return {"n": n, "attempt": context.attempt_number, "why": context.last_error and str(context.last_error)}


def answered(body, asked):
    return {"value": 2 * body["n"], "label": f"attempt {body['attempt']}", "tokens": 3}


@pytest.fixture
def service():
    with billing() as (url, server):
        server.answer = answered
        server.url = url
        yield server


@pytest.fixture
def rows(spark):
    return spark.range(0, 40, 1, 2).selectExpr("id", "id % 25 AS n", "array(id) AS xs")


def everything(submission):
    """The results and the dead letters, with the columns of the input."""
    results, letters = submission.collect().collect(), submission.dead_letters().collect()
    assert sorted(row.id for row in [*results, *letters]) == list(range(40))
    assert all(row.xs == [row.id] and row.n == row.id % 25 for row in [*results, *letters])
    return results, letters


class Noted(Findable):
    """Notes which task has sent a job."""

    def submit(self, requests, key):
        Path(self.folder, key).write_text(str(TaskContext.get().partitionId()))
        return super().submit(requests, key)


@pytest.mark.promise("submit", "Submit and collect")
def test_rows_are_submitted_today_and_collected_in_another_session(spark, service, rows, tmp_path, capsys, caplog):
    """One job expires, one is not given at first; some answers do not fit, and one request is a bad one."""
    states, failures = iter(["ended", "expired"]), iter([web.Response(status=500)])
    service.ends = lambda job: next(states, "ended")
    service.disturb = lambda step, pid: next(failures, None) if step == "fetch before" else None

    def answer(body, asked):
        if body["n"] == 24:
            return ValueError("400")
        is_bad = body["n"] % 5 == 0 and body["attempt"] == 1
        return {"value": "much" if is_bad else 2 * body["n"], "label": body["why"] or "at once", "tokens": 3}

    service.answer = answer
    budget = Budget(1000, "tokens", reserve=10, settle=lambda n, answer: answer["tokens"])
    state, sent = str(tmp_path / "state"), tmp_path / "sent"
    sent.mkdir()
    if hasattr(sf, "collate") and not HAS_SAIL:
        rows = rows.selectExpr("*", "collate('a', 'UNICODE_CI') AS letter")
    union = spark.conf.get("spark.sql.unionOutputPartitioning", "true")
    submission = submit(rows, ask, "n", service=Noted(service.url, folder=str(sent)), state=state, budget=budget)
    status = submission.status()
    assert len(service.jobs) == 3, "25 requests, 10 in a job"
    assert (status.rows, status.requests["done"], status.is_done, status.exit_code) == (40, 0, False, 75)
    assert (len(repr(status).splitlines()), sum(status.jobs.values())) == (1, 3)
    # So a task that dies takes one job with it; a union of parts that have one partition each had one partition.
    assert sorted(path.read_text() for path in sent.iterdir()) == ["0", "1", "2"]
    assert spark.conf.get("spark.sql.unionOutputPartitioning", "true") == union
    assert main(["batches", state, "--look"]) == 75
    assert capsys.readouterr().out.startswith("ask: not done; 40 rows; requests: ")

    submission = Submission.open(state, spark.newSession())
    assert submission.wait().exit_code == 0
    assert "cannot be fetched: HTTPError: HTTP Error 500" in caplog.text
    assert main(["batches", state, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["is_done"], told["attempt"], told["requests"]["failed"]) == (True, 2, 1)
    assert told["spent"] == {"tokens": 3.0 * sum(service.billed.values())}
    schema = rows.schema.simpleString().removesuffix(">") + ",value:bigint,label:string>"
    assert submission.collect().schema.simpleString() == schema
    results, letters = everything(submission)
    assert {(row.n, row.value) for row in results} == {(n, 2 * n) for n in range(24)}
    whys = Counter(row.label.split(":")[0] for row in results)
    assert set(whys) == {"at once", "ask returned 'much' (str) in field 'value'", "the request has no answer"}
    (letter,) = letters
    error = (letter.error.type, letter.error.status, letter.error.function)
    assert (letter.n, error) == (24, ("PermanentError", 400, "ask"))
    assert set(service.asked.values()) == {1}, "each request is asked once in each attempt"
    assert service.steps["fetch"] == 1 + len(service.jobs) > 4, "each job is fetched once, those of attempt 2 too"
    assert main(["batches", str(tmp_path / "nowhere")]) == 1
    assert "nothing was submitted with the state" in capsys.readouterr().err


def test_a_state_of_an_earlier_version_goes_on(service, rows, tmp_path):
    """The function in it has none of the fields that came since. It was an AttributeError, and paid jobs were lost."""
    old = batch_function("value bigint, label string", parse=read)(ask.__wrapped__)
    del vars(old.spec)["takes_named"], vars(old.spec)["named_vectors"], vars(old.options)["open_timeout"]
    budget = Budget(1000, "tokens", reserve=10, settle=lambda n, answer: answer["tokens"])
    submit(rows, old, "n", service=Findable(service.url), state=tmp_path / "state", budget=budget)
    submission = Submission.open(tmp_path / "state")
    assert submission.wait().spent == {"tokens": 75.0}
    assert everything(submission)[1] == []


@pytest.mark.spark_only("a server of another process has a working directory of its own")
def test_a_relative_state_begins_where_the_program_is_when_it_is_given(service, rows, tmp_path, monkeypatch):
    """Spark's driver stays in the folder where it was started: the state was there."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    submission = submit(rows, ask, "n", service=Findable(service.url), state=Path("states/june"))
    assert submission.state == str(tmp_path / "here/states/june")
    monkeypatch.chdir(tmp_path / "there")
    assert submission.wait().is_done
    assert everything(submission)[1] == []
    assert [path.name for path in tmp_path.iterdir() if any(path.iterdir())] == ["here"]
    with pytest.raises(FunctionError, match=f"nothing was submitted with the state {tmp_path}/there/states/june"):
        Submission.open("states/june")
    for state in ("../here/states/june", f"file:{tmp_path}/here/states/june"):
        assert Submission.open(state).status().is_done
    os.rename(tmp_path / "here/states/june", tmp_path / "june")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Submission.open("~/june").collect().count() == 40


def test_what_is_not_done_is_left_out_or_cancelled(service, rows, tmp_path, monkeypatch):
    """The time to wait is shorter than that between two looks: the last look is at its end."""
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    clock = SimpleNamespace(**{**vars(time), "monotonic": lambda: now[0], "sleep": sleep})
    monkeypatch.setattr("asyncudf._batches.submission.time", clock)

    @batch_function("bigint", parse=lambda answer: answer["value"])
    def picky(n: int):
        if n == 1:
            raise KeyError("no such thing")
        return {"n": n, "attempt": 1, "text": {2: object(), 3: "x" * 200}.get(n)}

    service.ends = lambda job: "ended" if job.id == "job-0" and now == [30.0] else "working"
    bounded = Jobs(service.url, max_bytes=100, max_queued=10.0, max_requests=5, poll_every=600.0)
    with pytest.raises(AsyncTimeoutError, match=r"not all requests were taken within 30 s: picky: not done; .* unsent"):
        submit(rows, picky, "n", service=bounded, state=str(tmp_path / "state"), timeout=30)
    assert service.jobs["job-0"].state == "ended"
    submission = Submission.open(str(tmp_path / "state"))
    with pytest.raises(AsyncUDFError, match=r"is not done: picky: not done; 40 rows; .* partial=True leaves out"):
        submission.collect()
    done = {body["n"] for body in service.jobs["job-0"].requests.values()}
    assert sorted(row.id for row in submission.collect(partial=True).collect()) == [
        n for n in range(40) if n % 25 in done
    ]
    submission.cancel()
    assert submission.wait().is_cancelled
    results, letters = everything(submission)
    assert {row.n for row in results} == done
    messages = {row.n: (row.error.type, row.error.message, row.error.attempts) for row in letters}
    assert messages.pop(1) == ("KeyError", "'no such thing'", 0)
    assert "is no JSON: TypeError" in messages.pop(2)[1]
    assert "bytes, and the service takes at most 100" in messages.pop(3)[1]
    assert {message for _, message, _ in messages.values()} == {
        "the request has no answer: it was cancelled",
        "the request has no answer: the submission was cancelled before it was sent",
    }


class Quick(OpenAIBatches):
    poll_every = 0.05


@pytest.mark.parametrize("names", [False, True], ids=["halves", "named"])
def test_a_job_that_fails_is_divided_until_the_requests_to_blame_are_alone(spark, rows, tmp_path, names):
    server = OpenAIServer()
    server.names_lines = names
    server.rejects = lambda body: "no such field" if body["n"] in (3, 19) else None
    server.answer = lambda body: str(2 * body["n"])

    @batch_function("bigint", parse=lambda answer: int(answer["choices"][0]["message"]["content"]))
    def asked(n: int):
        return {"model": "a-model", "n": n, "messages": []}

    with providing(server) as url:
        state = str(tmp_path / "state")
        service = Quick(client=partial(OpenAI, base_url=f"{url}/v1", api_key="k", max_retries=0))
        budget = Budget(1000, "USD", reserve=1.0, settle=lambda n, answer: answer["usage"]["total"] * 0.5)
        submission = submit(rows, asked, "n", service=service, state=state, budget=budget, attempts=1)
        partial_ids = {row.id for row in submission.collect(partial=True).collect()}
        status = Submission.open(state, spark.newSession()).wait()
        results, letters = everything(submission)
        assert partial_ids <= {row.id for row in results}
        assert {row.n for row in letters} == {3, 19}
        assert {row.n: row.asked for row in results} == {n: 2 * n for n in range(25) if n not in (3, 19)}
        assert (status.is_done, status.attempt, server.billed) == (True, 1, 23)
        assert (dict(status.unsettled), status.spent) == ({"KeyError: 'total'": 23}, {"USD": 23.0})
        assert "settle raised for 23 answers, charged with what was reserved: KeyError: 'total'" in repr(status)
        message = "no such field" if names else "its job has failed: invalid_request: no such field"
        assert all(message in row.error.message and row.error.attempts == 1 for row in letters)
        assert len(server.jobs) <= (3 if names else 1 + 4 * 5)
        assert Submission.open(state).wait().is_done


def test_a_settle_that_gives_no_cost_ends_it_and_a_mended_one_goes_on(service, rows, tmp_path):
    state = str(tmp_path / "state")
    wrong = Budget(1000, "tokens", reserve=10, settle=lambda n, answer: float("nan"))
    submission = submit(rows, ask, "n", service=Jobs(service.url), state=state, budget=wrong)
    # Of a write Spark 3.5 raises Java's own error.
    with pytest.raises(Exception, match="a budget of ask in tokens: settle must give a number of 0 or more, not nan"):
        submission.wait()
    mended = Budget(1000, "tokens", reserve=10, settle=lambda n, answer: answer["tokens"])
    assert Submission.open(state, budget=mended).wait().spent == {"tokens": 75.0}
    assert sum(service.billed.values()) == 25


def test_what_is_done_can_be_collected_though_one_job_cannot_be_fetched(service, rows, tmp_path, caplog):
    """It depended on how often it was tried before."""
    service.lines = lambda job, lines: ["{half"] if job.id == "job-0" else lines
    submission = submit(rows, ask, "n", service=Jobs(service.url), state=str(tmp_path / "state"))
    with pytest.raises(AsyncUDFError, match="cannot be fetched: JSONDecodeError"):
        submission.wait()
    done = {n for job in ("job-1", "job-2") for n in (body["n"] for body in service.jobs[job].requests.values())}
    for _ in range(4):
        assert {row.n for row in submission.collect(partial=True).collect()} == done
    assert "does not go on; what is done can be collected" in caplog.text
    assert submission.dead_letters(partial=True).count() == 0
    with pytest.raises(AsyncUDFError, match="is not done"):
        submission.collect()
    service.lines = lambda job, lines: lines
    assert len(everything(submission)[0]) == 40
    assert set(service.billed.values()) == {1}


def test_a_store_answers_and_a_parse_that_was_mended_reads_again_for_nothing(service, rows, tmp_path):
    store = ResultStore.disk(tmp_path / "store")
    submit(rows.where("n < 5"), ask, "n", service=Jobs(service.url), state=str(tmp_path / "a"), store=store).wait()
    broken = batch_function(ask.spec.function, ask.returns, parse=lambda answer: {"value": answer["valeu"]})
    state = str(tmp_path / "b")
    submission = submit(rows, broken, "n", service=Jobs(service.url), state=state, store=store)
    with pytest.raises(AsyncUDFError, match=r"could read none of 20 answers, for example KeyError: 'valeu'"):
        submission.wait()
    mended = Submission.open(state, function=ask, store=store)
    assert mended.wait().reused == 5
    assert len(everything(mended)[0]) == 40
    assert sum(service.billed.values()) == 25


class Here:
    """Can be loaded in workers, and in this process until it is said to be gone."""

    def __reduce__(self):
        return here, ()


def here():
    if "GONE" in os.environ:
        raise ModuleNotFoundError("No module named 'jobs'")
    return Here()


def test_another_function_version_type_or_other_rows_are_an_error_that_names_both(
    spark, service, rows, tmp_path, monkeypatch
):
    """What is given instead of that in the state need not be loaded."""
    state = str(tmp_path / "state")
    submit(rows, ask, "n", service=Jobs(service.url, module=Here()), state=state)

    @batch_function("bigint", parse=len)
    def other(n: int):
        return {}

    retyped = batch_function(ask.spec.function, "value bigint")
    for function, columns, df, text in [
        (other, "n", rows, "is of function .*ask', and this is function .*other'"),
        (ask.with_version("2"), "n", rows, "is of version '1', and this is version '2'"),
        (retyped, "n", rows, 'is of type .*"label":string>\', and this is type .*"value":int64>'),
        (ask, "id", rows, "or the function reads others of them"),
        (ask, "n", rows.drop("xs"), "is of rows with the columns struct<id:bigint,.*and these are of struct<id:bigint"),
        (ask, "n", rows.limit(39), r"is of other rows: it has 40, and this DataFrame has 39"),
        (ask, "n", rows.withColumn("id", sf.expr("id + 1")), "is of other rows: it has 40, and this DataFrame has 40"),
    ]:
        with pytest.raises(FunctionError, match=text):
            submit(df, function, columns, service=Jobs(service.url), state=state)
    with pytest.raises(FunctionError, match="is of service 'Jobs', and this is service 'Findable'"):
        Submission.open(state, spark, service=Findable(service.url))
    priced = [Budget(100, "USD", reserve=1), Budget(100, "tokens", reserve=1)]
    with pytest.raises(FunctionError, match="is of budget 'none', and this is budget 'USD, tokens'"):
        submit(rows, ask, "n", service=Jobs(service.url), state=state, budget=priced)
    assert len(service.jobs) == 3
    monkeypatch.setenv("GONE", "1")
    text = r"the service Jobs of the state .* cannot be loaded here \(ModuleNotFoundError: .* here, or give service= to"
    with pytest.raises(FunctionError, match=text):
        Submission.open(state, function=ask)
    assert Submission.open(state, service=Jobs(service.url)).status().requests["over"] == 25


def test_rows_whose_nulls_are_in_other_columns_are_other_rows(spark, service, tmp_path):
    """A hash of Spark leaves NULLs out: the same submission went on, and gave the rows of before."""
    state = str(tmp_path / "state")
    rows = spark.range(3).selectExpr("int(id) AS n", "if(id = 0, NULL, 1) AS x", "if(id = 0, 1, NULL) AS y")
    submit(rows, ask, "n", service=Jobs(service.url), state=state)
    submit(rows, ask, "n", service=Jobs(service.url), state=state)
    other = rows.selectExpr("n", "y AS x", "x AS y")
    with pytest.raises(FunctionError, match="is of other rows: it has 3, and this DataFrame has 3"):
        submit(other, ask, "n", service=Jobs(service.url), state=state)


def test_rows_of_somebody_in_the_folder_are_left_as_they_are(spark, service, rows, tmp_path):
    rows.write.parquet(str(tmp_path / "rows"))
    for _ in range(2):
        with pytest.raises(OptionError, match=r"has rows/ that no submission has written; take a new one"):
            submit(rows, ask, "n", service=Jobs(service.url), state=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 40


@pytest.mark.spark_only("its words for a cause")
def test_a_state_that_spark_cannot_read_or_write_is_named_with_the_cause(spark, service, rows, tmp_path):
    (tmp_path / "file").touch()
    for state, text in [
        ("nope://x/state", 'the state nope://x/state cannot be read: .*No FileSystem for scheme "nope"$'),
        (tmp_path / "file" / "state", "the state .*/file/state cannot be written: .*Parent path is not a directory"),
    ]:
        with pytest.raises(AsyncUDFError, match=text):
            submit(rows, ask, "n", service=Jobs(service.url), state=state)


def test_parts_that_a_killed_process_has_left_are_gone_in_a_session_that_keeps_them(
    service, rows, tmp_path, monkeypatch, conf
):
    add = StateFolder.add

    def killed(folder, events):
        if any(event.kind == "formed" for event in events):
            raise ConnectionError
        add(folder, events)

    with monkeypatch.context() as patch:
        patch.setattr(StateFolder, "add", killed)
        with pytest.raises(ConnectionError):
            submit(rows, ask, "n", service=Jobs(service.url, 5), state=tmp_path / "state")
    conf("spark.sql.sources.partitionOverwriteMode", "dynamic")
    submit(rows, ask, "n", service=Jobs(service.url, 20), state=tmp_path / "state")
    assert sorted(body["n"] for job in service.jobs.values() for body in job.requests.values()) == list(range(25))


def test_mistakes_are_errors_before_anything_is_written(spark, service, rows, tmp_path):
    state, good = str(tmp_path / "state"), Jobs(service.url)

    @batch_function
    def untyped(n: int):
        return {}

    stream = spark.readStream.format("rate").load().withColumnRenamed("value", "n")
    valued = rows.withColumn("value", sf.lit(1))
    for error, text, call in [
        (OptionError, "submit takes a function made by batch_function", partial(submit, rows, len, service=good)),
        (OptionError, "service must be a BatchService", partial(submit, rows, ask, "n", service="openai")),
        (OptionError, "submit takes a DataFrame, not", partial(submit, [1], ask, "n", service=good)),
        (OptionError, "attempts must be at least 1", partial(submit, rows, ask, "n", service=good, attempts=0)),
        (OptionError, "needs reserve=", partial(submit, rows, ask, "n", service=good, budget=Budget(1, settle=len))),
        (
            OptionError,
            r"reserve of ask takes \(\), and is called with the arguments of ask \(n\)",
            partial(submit, rows, ask, "n", service=good, budget=Budget(1, reserve=lambda: 1.0)),
        ),
        (
            OptionError,
            "leave out name='b'",
            partial(submit, rows, ask, "n", service=good, budget=Budget(1, reserve=1, name="b")),
        ),
        (
            OptionError,
            "leave out per= and by=",
            partial(submit, rows, ask, "n", service=good, budget=Budget(1, reserve=1, per="day")),
        ),
        (
            OptionError,
            "leave out per= and by=",
            partial(submit, rows, ask, "n", service=good, budget=Budget(1, reserve=1, by="n")),
        ),
        (OptionError, "max_requests of Jobs must be", partial(submit, rows, ask, "n", service=Jobs(service.url, 0))),
        (FunctionError, "this one is streaming", partial(submit, stream, ask, "n", service=good)),
        (FunctionError, "unknown column 'm'", partial(submit, rows, ask, "m", service=good)),
        (FunctionError, "the return type of untyped cannot be", partial(submit, rows, untyped, service=good)),
        (FunctionError, "would add a column 'value'", partial(submit, valued, ask, "n", service=good)),
    ]:
        with pytest.raises(error, match=text):
            call(state=state)
    assert not os.path.exists(state)


def test_no_rows_are_done_at_once(service, rows, tmp_path):
    submission = submit(rows.limit(0), ask, "n", service=Jobs(service.url), state=str(tmp_path / "state"))
    assert submission.collect().collect() == submission.dead_letters().collect() == []
    assert not service.jobs


def test_over_spark_connect_by_openais_client(connect, tmp_path):
    server = OpenAIServer()
    server.answer = lambda body: body["messages"][0]["content"].upper()
    with providing(server) as url:
        printed = connect.run(f"""
from functools import partial
from pathlib import Path
from openai import OpenAI
from asyncudf.batches import OpenAIBatches

@batch_function("string", parse=lambda answer: answer["choices"][0]["message"]["content"])
def shout(text: str):
    return {{"model": "a-model", "messages": [{{"role": "user", "content": text}}]}}

class Quick(OpenAIBatches):
    poll_every = 0.05

service = Quick(client=partial(OpenAI, base_url="{url}/v1", api_key="k", max_retries=0))
df = spark.createDataFrame([("oslo",), ("rome",), ("oslo",)], "text string")
submit(df, shout, service=service, state="{tmp_path}/state")
submission = Submission.open("{tmp_path}/state")
print(submission.wait().is_done, sorted(row.shout for row in submission.collect().collect()))
""")
    assert printed == "True ['OSLO', 'OSLO', 'ROME']\n"
    assert server.billed == 2
