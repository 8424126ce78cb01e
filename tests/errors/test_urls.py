"""URLs in messages have no user part and no query, and tokens are not shown; all else of a text stays as it is."""

from __future__ import annotations

import time

import pytest

from asyncudf._errors.safe import without_secrets

CLEANED = {
    "https://example.com/v1?key=secret": "https://example.com/v1?***",
    "https://me:secret@example.com/v1": "https://***@example.com/v1",
    "https://token@example.com": "https://***@example.com",
    "https://me:secret@example.com:8080/v1?key=secret#top": "https://***@example.com:8080/v1?***",
    "https://example.com?key=secret": "https://example.com?***",
    "https://example.com/a#access_token=secret": "https://example.com/a#***",
    "https://example.com/a;jsessionid=secret": "https://example.com/a;***",
    "https://[::1]:8080/v1?key=secret": "https://[::1]:8080/v1?***",
    "https://me:secret@[fe80::1]/v1": "https://***@[fe80::1]/v1",
    "postgresql://user:secret@host/db": "postgresql://***@host/db",
    "postgresql+asyncpg://user:se%40cret@host:5432/db?ssl=1": "postgresql+asyncpg://***@host:5432/db?***",
    "postgresql://user:se/cret@host/db": "postgresql://***@host/db",  # a slash that was not encoded
    "postgresql://user:sec@ret@host/db": "postgresql://***@host/db",
    "postgresql://user:secr...": "postgresql://***",  # cut off by somebody else
    "redis://:secret@host:6379/0": "redis://***@host:6379/0",
    "jdbc:sqlserver://host:1433;user=me;password=secret": "jdbc:sqlserver://host:1433;***",
    "mongodb://u:secret@h1:27017,h2:27017/db?replicaSet=r": "mongodb://***@h1:27017,h2:27017/db?***",
    "https://exämple.com/straße?schlüssel=geheim": "https://exämple.com/straße?***",
    "GET https://e.com/a?b=c, then d": "GET https://e.com/a?***, then d",
    "(see https://e.com/a?b=c).": "(see https://e.com/a?***).",
    "'https://e.com/a?b=c'": "'https://e.com/a?***'",
    '{"url":"https://e.com/a?b=c","status":404}': '{"url":"https://e.com/a?***","status":404}',
    "<a href=https://e.com/a?b=c>": "<a href=https://e.com/a?***>",
    "requests: https://e.com/a?q=it's&key=secret": "requests: https://e.com/a?***",
    "Max retries exceeded with url: /v1?key=secret (Caused by": "Max retries exceeded with url: /v1?*** (Caused by",
    "two: https://a:b@c/?d https://e:f@g/?h": "two: https://***@c/?*** https://***@g/?***",
    "//user:secret@host/share": "//***@host/share",
    "postgres://user:12/34secret@host/db": "postgres://***@host/db",  # no port: a password with a slash
    "redis://:8/secret@host:6379/0": "redis://***@host:6379/0",
    "//user:123/secret@host": "//***@host",
    "https://S3;x=CR3T@host/p": "https://***/p",
    "https://me;x:secret@host/p?key=secret": "https://***/p?***",
    "jdbc:sqlserver://host:1433;user=me;password=sec@ret": "jdbc:sqlserver://***",
    r"https:\/\/user:secret@host\/p?key=secret": r"https:\/\/***@host\/p?***",
    r"https:\/\/host:8080\/p?key=secret": r"https:\/\/host:8080\/p?***",
    r'{"url":"https:\\/\\/host\\/p?key=secret\"}': r'{"url":"https:\\/\\/host\\/p?***\"}',
    r'"\/v1?key=secret"': r'"\/v1?***"',
}


@pytest.mark.parametrize("text", CLEANED)
def test_a_url_loses_its_user_and_its_query(text: str) -> None:
    assert without_secrets(text) == CLEANED[text]
    assert without_secrets(CLEANED[text]) == CLEANED[text], "what is clean stays as it is"


TOKENS = {
    "{'Authorization': 'Bearer sk-proj-1aB'}": "{'Authorization': 'Bearer ***'}",
    "Authorization: basic dXNlcjpzZWNyZXQ=": "Authorization: basic ***",
    "Authorization: Basic dXNlcjpzZWNyZXQ": "Authorization: Basic ***",
    "AUTHORIZATION: BEARER sk-proj-1aB": "AUTHORIZATION: BEARER ***",
    "Bearer 12|AbCdEfGhIj, of Laravel": "Bearer ***, of Laravel",
    r"Illegal header value b'Bearer secret\n'": "Illegal header value ***",  # h11
    r"Invalid header value b'secret\n'": "Invalid header value ***",  # http.client
    r"or return character(s) in header value: 'secret\n'": "or return character(s) in header value: ***",  # requests
}


@pytest.mark.parametrize("text", TOKENS)
def test_a_token_and_the_header_that_a_client_refuses_are_not_shown(text: str) -> None:
    """Most often the end of a line in a file with the key: the key was in the error of each row."""
    assert without_secrets(text) == TOKENS[text]


UNTOUCHED = [
    "Basic authentication is required, or the bearer of a ticket",
    "Bearer {key}",
    "https://example.com/users/bob@example.com",
    "http://localhost:8080/users/bob@example.com",
    "https://host:8080/@user",
    "WSS://host:443/@user",
    r"https:\/\/host:8080\/@user",
    "redis://host:6379/0",
    r"C:\temp\x and a\/b",
    "https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/404#examples",
    "did you mean https://example.com/v1?",
    "http://[::1]",
    "s3://bucket/key file:///tmp/a.txt",
    "either/or? 3/4; a = b",
    "/etc/passwd not found",
    "no URL at all: a@b.com?",
    "",
]


@pytest.mark.parametrize("text", UNTOUCHED)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "/",
        "://",
        "://a:",
        "://a@",
        "?",
        ";=",
        "#",
        " /",
        "://a?b=c ",
        "\\",
        ":\\",
        " \\",
        "://a;=@",
        "Bearer ",
        "Bearer a",
        "header value '",
        " ",
    ],
)
def test_a_long_text_takes_time_in_proportion_to_its_length(piece: str) -> None:
    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        started = time.process_time()
        without_secrets(text)
        return time.process_time() - started

    shorter = min(seconds(10_000) for _ in range(3))
    assert min(seconds(200_000) for _ in range(2)) < 200 * max(shorter, 1e-4), "400 times for 20 times the length"
