"""Models of Pydantic, dataclasses, enums and literals as declared types, and as results."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import errno
import gc
import typing
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

import pandas as pd
import pytest

from asyncudf import (
    AsyncFunction,
    AsyncUDFError,
    CircuitBreaker,
    FunctionError,
    OptionError,
    ResultError,
    ResultFuture,
    ResultStore,
    RetryStrategy,
    RuntimeContext,
    async_pandas_udf,
    http,
)
from asyncudf._functions.annotations import UnknownTypeError, from_annotation
from asyncudf.testing import run_rows

pydantic = pytest.importorskip("pydantic")
typing_extensions = pytest.importorskip("typing_extensions")  # Pydantic needs it


class Tone(str, enum.Enum):  # noqa: UP042 - as people have it
    GOOD = "good"
    BAD = "bad"


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


class Part(pydantic.BaseModel):
    name: str
    price: decimal.Decimal | None = None


class Review(pydantic.BaseModel):
    tone: Tone
    level: Level = Level.LOW
    language: Literal["en", "de"]
    stars: Annotated[int, pydantic.Field(ge=1, le=5)]
    parts: list[Part] = []
    when: Optional[datetime.date] = None  # noqa: UP045
    tags: dict[str, float] = {}
    by: str = pydantic.Field(default="nobody", alias="author")


DDL = (
    "struct<tone:string,level:string,language:string,stars:bigint,"
    "parts:array<struct<name:string,price:decimal(38,18)>>,when:date,tags:map<string,double>,by:string>"
)
GOOD = Review(
    tone=Tone.GOOD, level=Level.HIGH, language="en", stars=5, parts=[Part(name="x", price="1.5")], author="me"
)
PLAIN = {
    "tone": "good", "level": "high", "language": "en", "stars": 5,
    "parts": [{"name": "x", "price": decimal.Decimal("1.5")}], "when": None, "tags": {}, "by": "me",
}  # fmt: skip


def results(function: Any, rows: Any = (1,), **options: Any) -> Any:
    """With a store results are what Spark would get."""
    options = {"store": ResultStore.executor(max_bytes=2**24), "version": function.__qualname__, **options}
    return run_rows(function, rows, **options)


@dataclass(frozen=True, slots=True)
class Found:
    tone: Tone
    levels: list[Level]


class TestDeclared:
    def test_by_annotation(self) -> None:
        assert from_annotation(Review) == DDL
        assert from_annotation(Literal[1, 2]) == "bigint"
        assert from_annotation(Literal[True]) == "boolean"
        assert from_annotation(Annotated[list[Tone], "x"]) == "array<string>"

    def test_as_return_type(self) -> None:
        async def f(x: int):  # type: ignore[no-untyped-def]
            return GOOD

        assert results(f, returnType=Review) == [PLAIN]
        declared = async_pandas_udf(Review, capacity=5)(f)
        assert results(declared.__wrapped__, returnType=declared.returns) == [PLAIN]

    def test_an_async_function_that_is_a_dataclass_is_no_type(self) -> None:
        @dataclass
        class Lookup(AsyncFunction):
            prefix: str = "found "

            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([self.prefix + value["x"]])

        assert async_pandas_udf(Lookup, "string").spec.name == "Lookup"
        assert async_pandas_udf(Lookup).spec.name == "Lookup"

    def test_classes_of_pydantic_for_plain_types(self) -> None:
        class Visit(pydantic.BaseModel):
            at: pydantic.AwareDatetime
            local: pydantic.NaiveDatetime
            born: pydantic.PastDate | None
            size: pydantic.ByteSize

        ddl = "struct<at:timestamp_ltz,local:timestamp_ntz,born:date,size:bigint>"
        assert from_annotation(Visit) == ddl
        noon = datetime.datetime(2026, 1, 2, 12)
        given = {"at": noon.replace(tzinfo=datetime.UTC), "local": noon, "born": datetime.date(2000, 1, 2)}

        async def f(x: int) -> Visit:
            return Visit(size="2KB", **given)

        assert results(f) == [{**given, "size": 2000}]

    def test_what_is_no_type_of_sparks_is_named_with_its_field(self) -> None:
        class Login(pydantic.BaseModel):
            user: str
            password: pydantic.SecretStr

        class Outer(pydantic.BaseModel):
            logins: list[Login]

        with pytest.raises(
            UnknownTypeError, match=r"Outer.logins: Login.password: no Spark type for .*SecretStr.*such as str"
        ):
            from_annotation(Outer)
        with pytest.raises(OptionError, match=r"Login.password: no Spark type"):
            async_pandas_udf(Login)

    def test_a_model_that_contains_itself(self) -> None:
        with pytest.raises(UnknownTypeError, match=r"Node.children: Node contains itself"):
            from_annotation(Node)

    @pytest.mark.parametrize("hint", [Literal["a", 1], int | str, Literal[None]])  # noqa: PYI061
    def test_several_types(self, hint: Any) -> None:
        with pytest.raises(UnknownTypeError):
            from_annotation(hint)

    def test_a_root_model_and_one_that_is_not_complete(self) -> None:
        with pytest.raises(UnknownTypeError, match="is a RootModel; return its root"):
            from_annotation(pydantic.RootModel[list[int]])
        late = pydantic.create_model("Late", other=("NotThere", ...))
        with pytest.raises(UnknownTypeError, match=r"Late.other is annotated with .* call Late.model_rebuild"):
            from_annotation(late)

    def test_a_model_of_pydantic_1(self) -> None:
        base = type("BaseModel", (), {"__module__": "pydantic.main", "__fields__": {}, "__validators__": {}})

        class Old(base):  # type: ignore[misc, valid-type]
            name: str

        async def f(x: int) -> Old:
            return Old()

        with pytest.raises(FunctionError, match="Old is a model of Pydantic 1"):
            run_rows(f, [1])
        for declare in (lambda: async_pandas_udf(Old), lambda: async_pandas_udf(f, returnType=Old)):
            with pytest.raises(OptionError, match="Old is a model of Pydantic 1; asyncudf reads those of Pydantic 2"):
                declare()
        with pytest.raises(ResultError, match="give a dict, a dataclass"):
            run_rows(f, [1], returnType="name string")

    def test_a_typed_dict_of_typing_extensions(self) -> None:
        """Pydantic takes no other before Python 3.12."""
        found = typing_extensions.TypedDict("Found", {"tone": Tone, "parts": list[Part]})

        async def f(x: int):  # type: ignore[no-untyped-def]
            return {"tone": Tone.GOOD, "parts": [Part(name="x")]}

        assert results(f, returnType=found) == [{"tone": "good", "parts": [{"name": "x", "price": None}]}]

    def test_what_pydantic_has_for_annotations_is_no_type(self) -> None:
        with pytest.raises(UnknownTypeError, match="no Spark type for Strict"):
            from_annotation(pydantic.Strict())

    def test_a_class_of_an_enclosing_function(self) -> None:
        class Local(pydantic.BaseModel):
            number: int

        async def found(x: int) -> Local:
            return Local(number=x)

        async def lost(x: int) -> Local:  # its code does not use the name: Python keeps no reference
            return {"number": x}  # type: ignore[return-value]

        async def many(x: int) -> AsyncIterator[Local]:
            yield {"number": x}  # type: ignore[misc]

        assert results(found) == [{"number": 1}]
        for function in (lost, many):
            with pytest.raises(FunctionError, match=r"Local.*' cannot be read: .* at the top of the module, or give"):
                run_rows(function, [1])
            assert run_rows(function, [1], returnType=Local) == [{"number": 1}]

    def test_a_field_of_a_class_of_an_enclosing_function(self) -> None:
        @dataclass
        class Inner:
            number: int

        @dataclass
        class Outer:
            inner: Inner

        with pytest.raises(
            UnknownTypeError, match=r"annotation of inner in .*Outer.* cannot be read: .* at the top of"
        ):
            from_annotation(Outer)

    def test_a_class_that_only_looks_like_one(self) -> None:
        class Car:
            model_fields: typing.ClassVar = {"wheels": 4}

        with pytest.raises(UnknownTypeError):
            from_annotation(Car)


class Node(pydantic.BaseModel):
    children: list[Node] = []


class TestResults:
    def test_an_instance_becomes_a_struct(self) -> None:
        async def f(x: int) -> Review:
            return GOOD

        assert results(f) == [PLAIN]
        assert run_rows(f, [1]) == [GOOD], "the test kit gives back what the function has returned"
        assert run_rows(f, [1], as_column=True) == [PLAIN]

    def test_of_generators_and_for_each_row(self) -> None:
        async def many(x: int) -> AsyncIterator[Part]:
            for _ in range(x):
                yield Part(name="x")

        async def bulk(x: pd.Series) -> list[Part | Exception]:
            return [ValueError() if value == 1 else Part(name=str(value)) for value in x]

        assert results(many, [2]) == [{"name": "x", "price": None}] * 2
        assert results(bulk, [0, 1], on_error="null") == [{"name": "0", "price": None}, None]

    def test_a_dict_and_a_dataclass_with_enums(self) -> None:
        async def f(x: int) -> Found:
            return Found(Tone.BAD, [Level.LOW])

        async def g(x: int) -> Found:
            return {"tone": "bad", "levels": [Level.HIGH]}  # type: ignore[return-value]

        assert results(f) == [{"tone": "bad", "levels": ["low"]}]
        assert results(g) == [{"tone": "bad", "levels": ["high"]}]

    def test_the_value_of_an_enum_of_any_type(self) -> None:
        rate = enum.Enum("rate", {"LOW": 0.5})
        code = enum.Enum("code", {"A": b"a"})
        flag = enum.Enum("flag", {"ON": True})
        number = enum.Enum("number", {"ONE": 1})
        rates = pydantic.create_model(
            "Rates", rate=(rate, ...), code=(code, ...), flag=(flag, ...), number=(number, ...)
        )

        async def f(x: int):  # type: ignore[no-untyped-def]
            return rates(rate=rate.LOW, code=code.A, flag=flag.ON, number=number.ONE)

        assert results(f, returnType=rates) == [{"rate": 0.5, "code": b"a", "flag": True, "number": 1}]

    def test_an_enum_of_another_type_does_not_fit(self) -> None:
        async def f(x: int) -> Tone:
            return enum.Enum("Other", {"ONE": 1}).ONE  # type: ignore[attr-defined,no-any-return]

        with pytest.raises(ResultError, match="declared string"):
            run_rows(f, [1])

    def test_fields_beyond_those_declared(self) -> None:
        class Open(Part, extra="allow"):
            pass

        async def f(x: int) -> Part:
            return Open(name="x", color="red")

        with pytest.raises(ResultError, match="unknown field 'color'"):
            run_rows(f, [1], extra_fields="error")
        assert results(f) == [{"name": "x", "price": None}]

    def test_what_a_model_has_beside_its_fields_is_left_alone(self) -> None:
        class Odd(Part):
            _secret: int = pydantic.PrivateAttr(default=3)

            @pydantic.computed_field  # type: ignore[prop-decorator]
            @property
            def twice(self) -> int:
                raise RuntimeError("not asked for")

            def model_dump(self, **_: Any) -> Any:
                raise RuntimeError("not asked for")

        async def f(x: int) -> Odd:
            return Odd(name="x")

        assert results(f) == [{"name": "x", "price": None}]

    def test_what_a_model_serializes_as_can_be_declared(self) -> None:
        """A computed field was missing and a field unknown that only its alias names, for all rows."""

        class Box(pydantic.BaseModel):
            side: int
            colour: str = pydantic.Field(default="red", serialization_alias="color")
            secret: str = pydantic.Field(default="key", exclude=True)

            @pydantic.computed_field(alias="size")  # type: ignore[prop-decorator]
            @property
            def area(self) -> int:
                return self.side**2

        async def box(x: int) -> Any:
            return Box(side=x)

        async def typed(x: int) -> Box:
            return Box(side=x)

        def give(declared: Any, function: Any = box) -> Any:
            return run_rows(function, [3], returnType=declared, as_column=True)

        assert give("side int, area int, color string") == [{"side": 3, "area": 9, "color": "red"}]
        assert give("side int, size int, colour string") == [{"side": 3, "size": 9, "colour": "red"}]
        assert give("side int, colour string, secret string") == [{"side": 3, "colour": "red", "secret": "key"}]
        assert give(None, typed) == [{"side": 3, "colour": "red"}], "no computed field, and none that is excluded"
        assert give("side int") == [{"side": 3}]

    def test_a_serializer_of_the_whole_model_says_what_its_fields_are(self) -> None:
        class Point(pydantic.BaseModel):
            x: int

            @pydantic.model_serializer
            def both(self) -> dict[str, int]:
                return {"left": self.x, "right": -self.x}

        async def point(x: int) -> Any:
            return Point(x=x)

        assert run_rows(point, [3], returnType="left int, right int", as_column=True) == [{"left": 3, "right": -3}]
        assert run_rows(point, [3], returnType="x int", as_column=True) == [{"x": 3}]

    def test_a_name_is_never_the_alias_of_another_field(self) -> None:
        """The field of that name had the other one's value."""

        class Both(pydantic.BaseModel):
            new: int = 1
            old: int = pydantic.Field(default=2, serialization_alias="new")

        async def both(x: int) -> Any:
            return Both()

        assert run_rows(both, [3], returnType="new int") == [{"new": 1}]

    def test_a_serializer_that_gives_no_fields_is_not_asked_for_them(self) -> None:
        class Name(pydantic.BaseModel):
            first: str

            @pydantic.model_serializer
            def text(self) -> str:
                return self.first

        async def name(x: int) -> Any:
            return Name(first="Ada")

        with pytest.raises(ResultError, match="missing field 'last'"):
            run_rows(name, [3], returnType="first string, last string")

    def test_a_computed_field_that_raises_fails_its_row(self) -> None:
        class Ratio(pydantic.BaseModel):
            x: int

            @pydantic.computed_field  # type: ignore[prop-decorator]
            @property
            def inverse(self) -> float:
                return 1 / self.x

        async def ratio(x: int) -> Any:
            return Ratio(x=x)

        declared = "x int, inverse double"
        got = run_rows(ratio, [0, 2], returnType=declared, on_error="null", as_column=True)
        assert got == [None, {"x": 2, "inverse": 0.5}]


class TestLastError:
    def test_a_model_is_asked_again_with_what_was_wrong(self) -> None:
        prompts: list[str] = []
        answers = iter(['{"name": 3}', '{"nam": "x"}', '{"name": "x"}'])

        async def ask(text: str, context: RuntimeContext) -> Part:
            prompts.append(
                text if context.last_error is None else f"{text}, not {context.last_error.error_count()} wrong"
            )
            return Part.model_validate_json(next(answers), strict=True)

        retry = RetryStrategy.fixed_delay(3, 1.0, retry_on=pydantic.ValidationError)
        assert run_rows(ask, ["a"], retry=retry) == [Part(name="x")]
        assert prompts == ["a", "a, not 1 wrong", "a, not 1 wrong"]

    def test_a_result_that_was_not_accepted(self) -> None:
        seen: list[Any] = []

        async def f(x: int, context: RuntimeContext) -> int:
            seen.append(context.last_error)
            return len(seen)

        assert run_rows(f, [1], retry=RetryStrategy.fixed_delay(3, 1.0, retry_if_result=lambda n: n < 3)) == [3]
        assert seen == [None, 1, 2]

    def test_each_row_has_its_own_and_no_traceback(self) -> None:
        seen: list[Any] = []

        async def f(x: int, context: RuntimeContext) -> int:
            if (last := context.last_error) is None:
                raise ValueError(x)
            seen.append((x, last.args, last.__traceback__))
            return x

        run_rows(f, [1, 2, 3], retry=RetryStrategy.fixed_delay(2, 1.0))
        assert seen == [(1, (1,), None), (2, (2,), None), (3, (3,), None)]

    def test_a_refusal_is_the_last_error_too(self) -> None:
        ends = [ValueError("no JSON"), http.error_for(429, retry_after=1), None]
        seen: list[Any] = []

        async def f(x: int, context: RuntimeContext) -> int:
            seen.append(context.last_error)
            if (error := ends[len(seen) - 1]) is not None:
                raise error
            return x

        assert run_rows(f, [1], retry=RetryStrategy.fixed_delay(2, 1.0)) == [1]
        assert seen == [None, *ends[:2]]

    @pytest.mark.parametrize("is_vectorized", [False, True])
    def test_an_exception_that_cannot_be_changed(self, is_vectorized: bool) -> None:
        @dataclass(frozen=True)
        class RejectedError(Exception):
            code: int

        seen: list[Any] = []

        def end(context: RuntimeContext) -> RejectedError | None:
            seen.append(context.last_error)
            return RejectedError(7) if len(seen) == 1 else None

        async def one(x: int, context: RuntimeContext) -> int:
            if (error := end(context)) is not None:
                raise error
            return x

        async def many(x: pd.Series, context: RuntimeContext) -> list[int | Exception]:
            error = end(context)
            return [error or value for value in x]

        assert run_rows(many if is_vectorized else one, [1], retry=RetryStrategy.fixed_delay(2, 1.0)) == [1]
        assert seen == [None, RejectedError(7)]

    def test_the_halves_of_a_call_know_why_it_was_split(self) -> None:
        seen: list[Any] = []

        async def f(x: pd.Series, context: RuntimeContext) -> list[int]:
            seen.append((len(x), context.last_error and context.last_error.args))
            if 3 in set(x):
                raise ValueError(len(x))
            return list(x)

        assert run_rows(f, [1, 2, 3, 4], split_failed=True, on_error="null") == [1, 2, None, 4]
        assert seen == [(4, None), (2, (4,)), (2, (4,)), (1, (2,)), (1, (2,))]

    def test_a_row_that_an_outage_has_excused(self) -> None:
        seen: list[Any] = []

        async def f(x: int, context: RuntimeContext) -> int:
            if len(seen) < 40:
                seen.append(x)
                raise ConnectionError(x)
            if context.attempt_number > 1:
                seen.append(context.last_error)
            return x

        breaker = CircuitBreaker(open_for=1, max_open=300)
        assert run_rows(f, range(40), capacity=4, on_error="null", breaker=breaker) == list(range(40))
        assert len(seen) > 40
        assert {type(error) for error in seen[40:]} == {ConnectionError}

    def test_the_answer_of_a_late_row_knows_it(self) -> None:
        seen: list[Any] = []

        class Ask(AsyncFunction):
            async def open(self, context: RuntimeContext) -> None:
                self.context = context

            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                if self.context.attempt_number == 1:
                    raise ValueError("no JSON")
                await asyncio.Event().wait()

            def timeout(self, value: Any, result_future: ResultFuture) -> None:
                seen.append(self.context.last_error)
                result_future.complete([None])

        run_rows(Ask(), [{"x": 1}], timeout=10.0, retry=RetryStrategy.fixed_delay(2, 1.0))
        assert [error.args for error in seen] == [("no JSON",)]

    @pytest.mark.parametrize("in_group", [False, True])
    def test_it_keeps_nothing_of_what_was_called_alive(self, in_group: bool) -> None:
        class Answer:
            pass

        alive: list[weakref.ref[Answer]] = []

        async def parse() -> None:
            answer = Answer()
            alive.append(weakref.ref(answer))
            raise KeyError("tone")

        async def f(x: int, context: RuntimeContext) -> int:
            if context.last_error is not None:
                gc.collect()
                return sum(one() is not None for one in alive)
            if in_group:
                async with asyncio.TaskGroup() as group:
                    group.create_task(parse())
            try:
                await parse()
            except KeyError as error:
                raise ValueError("no review") from error
            return -1

        assert run_rows(f, [1], retry=RetryStrategy.fixed_delay(2, 1.0)) == [0]

    @pytest.mark.parametrize("on_error", ["raise", "null"])
    def test_another_row_may_end_with_the_same_error_as_it_was(self, on_error: Any) -> None:
        """The first row is called again, as its refusal used no attempt; the task learns why the second failed."""
        answers = [http.error_for(429, retry_after=1), ValueError()]

        async def f(x: pd.Series, context: RuntimeContext) -> list[int | Exception]:
            if context.attempt_number == 1:
                return list(answers)
            try:
                raise OSError(errno.EMFILE, "Too many open files")
            except OSError:
                raise ValueError("no connection")  # noqa: B904 - as people have it

        with pytest.raises(AsyncUDFError, match=r"for the input \(2,\).*may open no more files") as caught:
            run_rows(f, [1, 2], on_error=on_error, retry=RetryStrategy.fixed_delay(2, 1.0))
        assert caught.value.__cause__ is not None
        assert caught.value.__cause__.__traceback__ is not None
