"""What a package asks for is read from its metadata as pip reads it."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement

from asyncudf._observe.doctor.packages import _counts, fits, required_of, version_of


@pytest.mark.parametrize(
    ("version", "bounds", "expected"),
    [
        ("3.0.0rc1", ">=2.2,<3", False),  # pip agrees
        ("4.1.0.dev1", ">=4.1", True),  # pip does not, and nobody has one by mistake
        ("2.5.1", "==2.5.*", True),
        ("2.6", "==2.5.*", False),
        ("2.6", "!=2.5.*", True),
        ("2.6", "~=1.0", False),
        ("2.6", "", True),
        ("odd", ">=1", False),
    ],
)
def test_bounds_of_odd_versions(version, bounds, expected):
    assert fits(version, bounds) is expected


@pytest.mark.parametrize(
    ("line", "always", "with_extra"),
    [
        ("a", True, False),
        ('a; extra == "b"', False, True),
        ('a; extra == "c"', False, False),
        ('a; sys_platform == "plan9"', False, False),
        ('a; sys_platform != "plan9" and extra == "b"', False, True),
        ('a; sys_platform == "plan9" and extra == "b"', False, False),
        ('a; sys_platform != "plan9" or extra == "b"', True, False),
    ],
)
def test_what_counts_here(line, always, with_extra):
    assert (_counts(Requirement(line), ""), _counts(Requirement(line), "b")) == (always, with_extra)


def test_a_package_that_is_not_there():
    assert version_of("no-such-package-anywhere") == ""
    assert required_of("no-such-package-anywhere") == []
