"""OpenAI's and Anthropic's batch interfaces, by the official clients: what each of their answers means."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from anthropic import Anthropic
from openai import APIStatusError, InternalServerError, OpenAI

from asyncudf import OptionError, http
from asyncudf._errors.answers import answer_of
from asyncudf.batches import (
    AnthropicBatches,
    BatchRequest,
    BatchService,
    JobState,
    JobStatus,
    NotAnsweredError,
    OpenAIBatches,
)
from asyncudf.batches._clients import lines_of
from asyncudf.batches._openai import _answer
from tests.kit.provider_batches import AnthropicServer, OpenAIServer, Provider, json_error, providing

pytestmark = pytest.mark.services

REQUESTS = [
    BatchRequest(f"{number:032x}", {"model": "a-model", "max_tokens": 5, "messages": []}) for number in range(4)
]


def openai_client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)


def anthropic_client(url: str) -> Anthropic:
    return Anthropic(base_url=url, api_key="k", max_retries=0)


@pytest.fixture(params=["openai", "anthropic"])
def provider(request: pytest.FixtureRequest) -> Iterator[tuple[Provider, BatchService]]:
    is_openai = request.param == "openai"
    server: Provider = OpenAIServer() if is_openai else AnthropicServer()
    with providing(server) as url:
        if is_openai:
            yield server, pickle.loads(pickle.dumps(OpenAIBatches(client=partial(openai_client, url))))
        else:
            yield server, pickle.loads(pickle.dumps(AnthropicBatches(client=partial(anthropic_client, url))))


def over(service: BatchService, job: str) -> JobStatus:
    """What a job is when it is over; the fake goes on at each look."""
    for _ in range(3):
        status = service.poll(job)
        assert isinstance(status.state, JobState)
        if status.state.is_over:
            return status
    raise AssertionError(status)


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"] if "choices" in answer else answer["content"][0]["text"])


def test_answers_and_errors_come_under_their_keys_in_any_order(provider: tuple[Provider, BatchService]) -> None:
    server, service = provider
    answers = iter(["yes", 400, 529, "no"])
    server.answer = lambda body: next(answers)
    job = service.submit(REQUESTS, "key")
    assert over(service, job) == JobStatus("ended", 4)
    found = dict(service.fetch(job))
    assert [*found] != [request.key for request in REQUESTS], "the fake turns them round"
    one, two, three, four = (found[request.key] for request in REQUESTS)
    assert (text_of(one), text_of(four)) == ("yes", "no")
    assert (type(two), two.status, type(three), three.status) == (http.PermanentError, 400, http.RetryableError, 529)


@pytest.mark.parametrize("state", ["expired", "cancelled"])
def test_a_job_that_ends_early_has_the_answers_that_were_there(
    provider: tuple[Provider, BatchService], state: str
) -> None:
    server, service = provider
    server.ended = lambda job: "expired" if state == "expired" else None
    job = service.submit(REQUESTS, "key")
    if state == "cancelled":
        service.cancel(job)
    over(service, job)
    found = dict(service.fetch(job))
    missing = [key for key, answer in found.items() if isinstance(answer, NotAnsweredError)]
    assert len(missing) == (2 if state == "expired" else 4)
    assert server.billed == (2 if state == "expired" else 0)


def test_a_file_that_breaks_off_is_an_error_and_not_a_shorter_file(provider: tuple[Provider, BatchService]) -> None:
    server, service = provider
    job = service.submit(REQUESTS, "key")
    over(service, job)
    for cut in (0, 150, 500):
        server.cuts = [cut]
        with pytest.raises(Exception):  # noqa: B017, PT011 - each client has its own
            dict(service.fetch(job))
    assert len(dict(service.fetch(job))) == 4


def test_a_refusal_says_when_to_come_back(provider: tuple[Provider, BatchService]) -> None:
    server, service = provider
    server.refuses = [json_error(429, "rate_limit_error", "too many", **{"Retry-After": "7"})]
    with pytest.raises(Exception, match="429") as caught:
        service.submit(REQUESTS, "key")
    refusal = answer_of(caught.value).refusal
    assert refusal is not None
    assert refusal.wait == 7.0
    assert not server.jobs


def test_openai_says_after_a_while_that_the_queue_of_tokens_was_full() -> None:
    server = OpenAIServer()
    server.most_enqueued, server.ended = 1, lambda job: None
    with providing(server) as url:
        service = OpenAIBatches(client=partial(openai_client, url))
        first, second = service.submit(REQUESTS, "a"), service.submit(REQUESTS, "b")
        assert service.poll(first).state is JobState.WORKING
        assert service.poll(second).state is JobState.REFUSED
        assert "Enqueued token limit" in service.poll(second).error


@pytest.mark.parametrize(
    ("told", "state", "error"),
    [
        ({"status": "COMPLETED"}, JobState.ENDED, ""),
        ({"status": "complete", "completed_at": 9}, JobState.ENDED, ""),
        ({"status": "timed_out", "expired_at": 9}, JobState.EXPIRED, ""),
        ({"status": "queued"}, JobState.WORKING, "its status 'queued' is not known"),
        ({"status": "in_progress"}, JobState.WORKING, ""),
    ],
)
def test_a_job_of_a_status_that_openai_has_not_ends_all_the_same(
    told: dict[str, Any], state: JobState, error: str
) -> None:
    """Services with the same interface have others. It counted as at work for ever, without a word."""
    server = OpenAIServer()
    server.ended = lambda job: None
    with providing(server) as url:
        service = OpenAIBatches(client=partial(openai_client, url))
        job = service.submit(REQUESTS, "a")
        service.poll(job)
        server.jobs[job].update(told)
        status = service.poll(job)
    assert (status.state, status.error) == (state, error)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ({"response": {"status_code": "200", "body": {"a": 1}}}, None),
        ({"response": {"status_code": 200.0, "body": {"a": 1}}, "error": {}}, None),
        ({"response": {"status_code": "422", "body": {"a": 1}}}, 422),
        ({"error": {"code": "400", "message": "bad"}}, 400),
        ({"error": {"code": 429}, "response": None}, 429),
        ({"error": {"code": "invalid_x"}}, 500),
        ({"error": "a text"}, 500),
    ],
)
def test_a_status_may_be_a_text_and_that_of_an_error_in_its_code(line: dict[str, Any], status: int | None) -> None:
    """Services with the same interface write so: an answer that was paid for was thrown away, and a 400 sent again."""
    found = _answer(line)
    assert (found if status is None else found.status) == (status or {"a": 1})


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ([], ""),
        ({"data": None}, ""),
        ("no such model", "no such model"),
        ({"data": [{"code": "a", "message": "b"}]}, "a: b"),
    ],
)
def test_a_job_has_failed_whatever_form_its_errors_have(errors: Any, said: str) -> None:
    """It was an AttributeError: the service "says nothing about job", and nothing went on."""
    server = OpenAIServer()
    with providing(server) as url:
        service = OpenAIBatches(client=partial(openai_client, url))
        job = service.submit(REQUESTS, "a")
        server.jobs[job].update(status="failed", errors=errors)
        status = service.poll(job)
        assert (status.state, status.error) == (JobState.FAILED, said)
        assert [*service.fetch(job)] == []


def failed(service: BatchService) -> tuple[str, JobStatus]:
    """A job that was sent and has failed."""
    job = service.submit(REQUESTS, "a")
    return job, over(service, job)


@pytest.mark.parametrize("file", ["whole", 404, 403, 500])
def test_openai_names_the_requests_because_of_which_a_job_has_failed(file: Any) -> None:
    """By their lines in the file of requests; if nobody gives the file, by none."""
    server, requests = OpenAIServer(), [BatchRequest(f"{n:032x}", {"messages": [], "n": n}) for n in range(6)]
    server.rejects = lambda body: "no such field" if body["n"] in (0, 4) else None
    with providing(server) as url:
        service = OpenAIBatches(client=partial(openai_client, url))
        job = service.submit(requests, "a")
        assert over(service, job) == JobStatus("failed", 0, "; ".join(["invalid_request: no such field"] * 2))
        if file == "whole":
            found = dict(service.fetch(job))
            assert {key: (type(error), error.status) for key, error in found.items()} == {
                requests[n].key: (http.PermanentError, 400) for n in (0, 4)
            }
            assert "no such field" in str(found[requests[0].key])
            return
        server.gone = {server.jobs[job]["input_file_id"]: file}
        if file == 500:
            with pytest.raises(InternalServerError):
                list(service.fetch(job))
        else:
            assert list(service.fetch(job)) == []


def test_openai_has_failed_a_job_without_a_line() -> None:
    server = OpenAIServer()
    server.rejects, server.names_lines = (lambda body: "bad"), False
    with providing(server) as url:
        service = OpenAIBatches(client=partial(openai_client, url))
        job, status = failed(service)
        assert status == JobStatus("failed", 0, "invalid_request: bad")
        assert list(service.fetch(job)) == []


SEPARATORS = "\u2028 \u2029 \x85 \x1c \x0b \x0c \r \n \\ \N{GRINNING FACE}"


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content,
        lambda content: content.rstrip(b"\n"),
        lambda content: content.replace(b"\n", b"\r\n"),
        lambda content: b"\xef\xbb\xbf" + content,
        lambda content: content.replace(b"\n", b"\n\n  \n\r\n"),
        lambda content: b"\n".join(reversed(content.split(b"\n"))),
        lambda content: b" " * 2**20 + content,
    ],
    ids=["as it is", "no end", "CRLF", "byte order mark", "blank lines", "blank at the start", "a long line"],
)
def test_lines_end_at_a_line_feed_alone(provider: tuple[Provider, BatchService], change: Any) -> None:
    """One U+2028 in an answer, which JSON may have as it is, made a job that was paid for impossible to collect."""
    server, service = provider
    server.answer, server.lines = (lambda body: SEPARATORS), change
    job = service.submit(REQUESTS, "key")
    assert over(service, job).answers == 4
    assert {key: text_of(answer) for key, answer in service.fetch(job)} == {one.key: SEPARATORS for one in REQUESTS}


def test_a_line_that_is_cut_anywhere_between_two_pieces_of_the_response_is_whole() -> None:
    content = '{"custom_id": "1", "é\u2028": 1}\r\n\n{"custom_id": "2"}'.encode()
    whole = [line.strip() for line in content.split(b"\n") if line.strip()]
    for size in range(1, len(content) + 1):
        pieces = [content[start : start + size] for start in range(0, len(content), size)]
        found = lines_of(SimpleNamespace(iter_bytes=lambda pieces=pieces: iter(pieces)))
        assert [line.strip() for line in found] == whole


OPENAI_LINES: list[Any] = [
    {"response": {"status_code": 0, "request_id": "", "body": {}}, "error": None},
    {"response": {"status_code": 200, "body": {}}},
    {"response": {"status_code": 200, "body": None}},
    {"response": {"status_code": 200}},
    {"response": {"status_code": 200, "body": "<html>"}},
    {"response": {"status_code": "none", "body": {"a": 1}}},
    {"response": {"status_code": 302, "body": {"a": 1}}},
    {"response": {"status_code": 700, "body": {"a": 1}}},
    {"response": {}},
    {"response": None, "error": None},
    {"response": "none", "error": []},
    {},
]
ANTHROPIC_LINES: list[Any] = [
    {"result": {"type": "paused"}},
    {"result": {"type": "paused", "message": {"content": []}}},
    {"result": {"type": None}},
    {"result": {"type": ["succeeded"]}},
    {"result": {"type": "succeeded"}},
    {"result": {"type": "succeeded", "message": {}}},
    {"result": {"type": "errored"}},
    {"result": {"type": "errored", "error": None}},
    {"result": {}},
    {"result": "succeeded"},
    {"result": None},
    {},
]


def in_place_of(key: str, line: Any) -> Any:
    """The file in which the line of a request is another one."""
    text = line if isinstance(line, bytes) else json.dumps({"custom_id": key, **line}).encode()
    return lambda content: b"\n".join(text if key.encode() in one else one for one in content.split(b"\n"))


@pytest.mark.parametrize("number", range(12))
def test_a_line_without_an_answer_is_a_request_without_one_and_all_others_count(
    provider: tuple[Provider, BatchService], number: int
) -> None:
    """It was taken for an answer, or nothing of the job could be fetched."""
    server, service = provider
    lines = OPENAI_LINES if isinstance(service, OpenAIBatches) else ANTHROPIC_LINES
    server.lines = in_place_of(REQUESTS[1].key, lines[number])
    job = service.submit(REQUESTS, "key")
    over(service, job)
    found = dict(service.fetch(job))
    error = found.pop(REQUESTS[1].key)
    assert {text_of(answer) for answer in found.values()} == {"yes"}
    assert (len(found), type(error), error.is_damaged) == (3, NotAnsweredError, False)
    assert "the request has no answer" in str(error)
    assert "html" not in error.without_value


@pytest.mark.parametrize("error", [{"code": None}, "no", {"code": "odd"}, ["no"], {"code": ["x"]}, 5])
def test_openai_may_write_an_error_in_any_form(error: Any) -> None:
    server = OpenAIServer()
    server.lines = in_place_of(REQUESTS[1].key, {"response": None, "error": error})
    with providing(server) as url:
        service = OpenAIBatches(client=partial(openai_client, url))
        job = service.submit(REQUESTS, "key")
        over(service, job)
        found = dict(service.fetch(job))
        assert type(found[REQUESTS[1].key]) is http.RetryableError
        assert len(found) == 4


@pytest.mark.parametrize("error", [{"type": "error"}, {"error": "no"}, {"error": {"type": ["x"]}}, {"error": None}])
def test_anthropic_may_write_an_error_in_any_form(error: Any) -> None:
    server = AnthropicServer()
    server.lines = in_place_of(REQUESTS[1].key, {"result": {"type": "errored", "error": error}})
    with providing(server) as url:
        service = AnthropicBatches(client=partial(anthropic_client, url))
        job = service.submit(REQUESTS, "key")
        over(service, job)
        found = dict(service.fetch(job))
        assert type(found[REQUESTS[1].key]) is http.RetryableError
        assert len(found) == 4


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (b'{"custom_id": "%s", "response": {"bo', True),
        (b'{"custom_id": "%s"', True),
        (b'{"custom_id": "%s", "result": \xff}', True),
        (b'{"custom_id": "%s", "a": ' + b"1" * 5000 + b"}", True),
        (b'{"custom_id": "%s", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", True),
        (b"%s", False),
        (b'"%s"', False),
        (b'{"id": "%s"}', False),
        (b'{"custom_id": ["%s"]}', False),
        (b'["custom_id", "%s"]', False),
    ],
)
def test_a_damaged_line_is_told_of_and_all_others_count(
    provider: tuple[Provider, BatchService], caplog: pytest.LogCaptureFixture, line: bytes, names: bool
) -> None:
    server, service = provider
    key = REQUESTS[1].key
    server.lines = in_place_of(key, line.replace(b"%s", key.encode()))
    job = service.submit(REQUESTS, "key")
    over(service, job)
    found = dict(service.fetch(job))
    assert {text_of(found[one.key]) for one in REQUESTS if one.key != key} == {"yes"}
    assert (key in found, len(found)) == (names, 3 + names)
    assert "among the answers cannot be read" in caplog.text
    if names:
        assert (type(found[key]), found[key].is_damaged) == (NotAnsweredError, True)
        assert "cannot be read" in found[key].without_value


def test_openai_keeps_no_file_for_ever() -> None:
    """What is in one of the two files counts when the other is gone; any other error is one of this moment."""
    server, answers = OpenAIServer(), iter(["yes", 400, 529, "no"])
    server.answer = lambda body: next(answers)
    with providing(server) as url:
        service = OpenAIBatches(client=partial(openai_client, url))
        job = service.submit(REQUESTS, "key")
        over(service, job)
        server.gone = {server.jobs[job]["output_file_id"]: 404}
        assert {error.status for _, error in service.fetch(job)} == {400, 529}
        for status in (403, 429, 500):
            server.gone = {server.jobs[job]["output_file_id"]: status}
            with pytest.raises(APIStatusError):
                list(service.fetch(job))


def test_openai_finds_a_job_by_its_key_and_anthropic_cannot() -> None:
    server = OpenAIServer()
    with providing(server) as url:
        service = OpenAIBatches(client=partial(openai_client, url))
        jobs = {key: service.submit(REQUESTS, key) for key in ("a", "b", "c", "d", "e")}
        assert {key: service.find(key) for key in jobs} == jobs
        assert service.find("f") is None
    assert (OpenAIBatches().can_find, AnthropicBatches().can_find) == (True, False)


def test_anthropic_has_no_results_after_29_days() -> None:
    server = AnthropicServer()
    with providing(server) as url:
        service = AnthropicBatches(client=partial(anthropic_client, url))
        job = service.submit(REQUESTS, "a")
        over(service, job)
        server.jobs[job]["archived"] = True
        assert service.poll(job) == JobStatus("expired", 0)
        assert list(service.fetch(job)) == []


def test_a_client_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r'OpenAIBatches needs openai: pip install "asyncudf\[openai\]"'):
        OpenAIBatches()
    with pytest.raises(OptionError, match=r'AnthropicBatches needs anthropic: pip install "asyncudf\[anthropic\]"'):
        AnthropicBatches()


@pytest.mark.parametrize("service", [OpenAIBatches, AnthropicBatches])
def test_a_client_is_made_in_each_process(service: Any) -> None:
    """The object itself cannot be pickled, which showed when rows were written already."""
    with pytest.raises(OptionError, match=r"client must be a function that makes the client, .*partial\(OpenAI, "):
        service(client=OpenAI(api_key="k"))
