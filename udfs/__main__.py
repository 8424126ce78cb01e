"""The command line: `python -m asyncudf doctor` looks at an installation, `batches` at what was submitted."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import os
import sys
from collections.abc import Sequence

from ._errors.exceptions import AsyncUDFError
from ._errors.safe import safe_repr
from ._observe.doctor import PACKAGE, as_text, examine, version_of

MOST_DIGITS = 9  # of a number of calls: a longer one is a typing error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit status: 0 if all is right, warnings allowed; 1 if not."""
    try:
        options = _parse(arguments)
        if options.command == "batches":
            return _batches(options)
        return 0 if options.command is None else _doctor(options)
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and sys.stderr is not None:  # `| head` closes the pipe
            sys.stderr.write(f"python -m asyncudf: cannot write what was found: {error.strerror or error}\n")
        with contextlib.suppress(OSError):  # what Python writes at its end must not fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options. Prints the help without a command; exits after `--help`, `--version` or a mistake."""
    # argparse hides that it cannot write, and since Python 3.14 fails if stdout is closed: so it writes to a buffer.
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            parser = _parser()
            options = parser.parse_args(arguments)
            if options.command is None:
                parser.print_help()
        return options
    finally:
        _write(said.getvalue())


def _write(text: str) -> None:
    # A program without a terminal may have no stdout: then the exit status alone says it.
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.write(text)
        sys.stdout.flush()  # the next finding may take a while


def _doctor(options: argparse.Namespace) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):  # also show a path with letters that the terminal cannot encode
        sys.stdout.reconfigure(errors="backslashreplace")
    findings = []
    for finding in examine(options.capacity):
        findings.append(finding)
        if not options.json:
            _write(as_text(finding) + "\n")
    status = int(any(one.status == "fail" for one in findings))
    if options.json:
        found = {"status": "fail" if status else "ok", "findings": [dataclasses.asdict(one) for one in findings]}
        _write(json.dumps(found, indent=2) + "\n")
    return status


def _batches(options: argparse.Namespace) -> int:
    from ._batches.submission import Submission  # imports Spark, which the doctor may not

    wait = options.wait or 0  # one round
    try:
        submission = Submission.open(options.state)
        status = submission.status() if options.look else submission.wait(timeout=wait, progress=bool(wait))
    except AsyncUDFError as error:
        sys.stderr.write(f"python -m asyncudf batches: {error}\n")
        return 1
    told = {**dataclasses.asdict(status), "exit_code": status.exit_code}
    _write(f"{json.dumps(told) if options.json else repr(status)}\n")
    return status.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m asyncudf", description="Flink's Async I/O for PySpark.")
    version = version_of(PACKAGE) or "(not installed)"
    parser.add_argument("--version", action="version", version=f"{PACKAGE} {version}")
    commands = parser.add_subparsers(title="commands", dest="command")
    doctor = commands.add_parser(
        "doctor",
        help="look whether Spark, Java and Python fit",
        description="One line for each thing that asyncudf needs, and the line that fixes what is wrong.",
        epilog="Exit status: 0 if all is right (warnings allowed), 1 if something fails.",
    )
    doctor.add_argument("--capacity", type=_positive, default=100, help="calls in flight in each task (default: 100)")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    batches = commands.add_parser(
        "batches",
        help="show how far a submission is, and go on with it",
        description="Fetch what is over, submit again what has to be, and print how far the submission is.",
        epilog="Exit status: 0 if each row has a result or is a dead letter, 75 if not, 1 for an error.",
    )
    batches.add_argument("state", help="the folder that submit was given")
    batches.add_argument("--wait", type=_positive, metavar="SECONDS", help="until it is done, but not longer than this")
    batches.add_argument("--look", action="store_true", help="only look: fetch nothing, and submit nothing")
    batches.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _positive(text: str) -> int:
    if text.isdecimal() and len(text) > MOST_DIGITS:
        raise argparse.ArgumentTypeError(f"must have at most {MOST_DIGITS} digits, not {len(text):,}")
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {safe_repr(text)}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
