"""What pyproject.toml cannot say: on PyPI the README's links to files lead to the repository."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Repository"]


def absolute(readme: str) -> str:
    """Pictures as they are (`raw`), pages as GitHub shows them (`blob`)."""
    readme = re.sub(r'((?:src|srcset)=")(?!https?:)', rf"\g<1>{REPOSITORY}/raw/main/", readme)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\g<1>{REPOSITORY}/blob/main/", readme)


setup(long_description=absolute((ROOT / "README.md").read_text("utf-8")), long_description_content_type="text/markdown")
