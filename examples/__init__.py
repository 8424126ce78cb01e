"""Programs that show one idea each. Run one as `python examples/<name>.py` or `python -m examples.<name>`."""

import sys

sys.path.append(__path__[0])  # as for a program: examples import `_session` from beside them
