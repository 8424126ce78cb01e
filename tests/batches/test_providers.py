"""OpenAI's and Anthropic's batch interfaces, by the official clients: what each of their answers means."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

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


def test_openai_says_why_a_job_has_failed_and_has_no_answers_of_it() -> None:
    server = OpenAIServer()
    server.ended = lambda job: "failed"
    with providing(server) as url:
        service = OpenAIBatches(client=partial(openai_client, url))
        job = service.submit(REQUESTS, "a")
        assert service.poll(job).state is JobState.WORKING, "validated"
        assert over(service, job).error == "line 1 is no JSON"
        assert list(service.fetch(job)) == []


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
