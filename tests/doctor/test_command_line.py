"""`python -m asyncudf` does what its arguments say, and ends with a status and without a traceback."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

import asyncudf
from asyncudf.__main__ import main
from asyncudf._observe.doctor import Finding, version_of


def findings_of(*findings: Finding):
    return lambda capacity: iter(findings)


@pytest.mark.parametrize(("status", "expected"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_the_exit_status_is_for_ci(monkeypatch, capsys, status, expected):
    """0 unless something fails, whatever comes after it; in words and in JSON."""
    findings = Finding("java", status, "found", "fix"), Finding("open files", "warn", "few", "more")
    monkeypatch.setattr("asyncudf.__main__.examine", findings_of(*findings))
    assert main(["doctor"]) == expected
    assert capsys.readouterr().out.split()[:5] == [status, "java", "found", "->", "fix"]
    assert main(["doctor", "--json"]) == expected
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == ("fail" if expected else "ok")
    assert told["findings"][0] == {"name": "java", "status": status, "found": "found", "fix": "fix"}


def test_the_command_line_reaches_the_checks(monkeypatch):
    seen = []
    monkeypatch.setattr("asyncudf.__main__.examine", lambda capacity: seen.append(capacity) or iter(()))
    main(["doctor", "--capacity", "7"])
    main(["doctor"])
    assert seen == [7, 100]


def test_without_a_command_there_is_help(capsys):
    assert main([]) == 0
    assert "doctor" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"asyncudf {version_of('asyncudf')}\n"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        *((value, f"must be a whole number of at least 1, not '{value}'") for value in ("0", "-1", "many", "1.5")),
        *((digits * "9", f"must have at most 9 digits, not {digits:,}\n") for digits in (10, 9000)),
    ],
)
def test_a_bad_number_is_named(capsys, value, told):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", f"--capacity={value}"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert told in said
    assert len(said) < 500


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a full disk, as Linux has it")
@pytest.mark.parametrize("arguments", ["doctor", "--version"])
def test_a_full_disk(arguments):
    """What was found cannot be told: one line says so, and no traceback, not even one of Python's end."""
    # Not all of asyncudf is imported, which brings Spark: the package here is empty but for its modules.
    code = f"""
import sys, types
package = sys.modules["asyncudf"] = types.ModuleType("asyncudf")
package.__path__ = [{os.path.dirname(asyncudf.__file__)!r}]
from asyncudf import __main__ as command
command.examine = lambda capacity: iter([doctor_finding])
from asyncudf._observe.doctor import Finding
doctor_finding = Finding("java", "ok", "17")
sys.exit(command.main({arguments.split()!r}))
"""
    with open("/dev/full", "w") as full:
        ran = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True)
    told = "python -m asyncudf: cannot write what was found: No space left on device\n"
    assert (ran.returncode, ran.stderr) == (1, told)


@pytest.mark.parametrize(("status", "expected"), [("ok", 0), ("fail", 1)])
def test_without_an_output_the_exit_status_tells(monkeypatch, status, expected):
    """As with `>&-`, in a program without a terminal, or after somebody has closed it."""
    monkeypatch.setattr("asyncudf.__main__.examine", findings_of(Finding("java", status, "found")))
    closed = io.StringIO()
    closed.close()
    for output in (None, closed):
        monkeypatch.setattr("sys.stdout", output)
        assert main(["doctor"]) == main(["doctor", "--json"]) == expected
        assert main([]) == 0


@pytest.mark.parametrize("line", ["sys.argv = ['-m', *'x' * 50]", "del sys.argv"])
def test_an_import_reads_no_odd_command_line(line):
    """Programs that Python is embedded in have any, or none; one that had set `-m` was ended with the doctor's help."""
    # It stops at the first module of Spark: the rest takes its time, and only the first lines are of interest.
    code = f"import sys; {line}; sys.modules['pyspark'] = None\ntry: import asyncudf\nexcept ModuleNotFoundError: pass"
    ran = subprocess.run([sys.executable, "-c", code, "asyncudf"], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("", "")


@pytest.mark.parametrize("command", [["-Bm", "asyncudf"], ["-masyncudf"]])
def test_each_spelling_of_the_command_runs_before_the_imports_that_may_fail(tmp_path, command):
    """`-masyncudf` was taken for an import, which fails without PySpark."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['pyspark'] = None")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("usage: python -m asyncudf")


def test_an_interrupt_ends_it_quietly(monkeypatch):
    """A program that is started may take a while, and who is in a hurry needs no traceback."""

    def interrupted(capacity):
        raise KeyboardInterrupt

    monkeypatch.setattr("asyncudf.__main__.examine", interrupted)
    assert main(["doctor"]) == 130
