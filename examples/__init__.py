"""Programs that show one idea each. Run one as `python examples/<name>.py` or `python -m examples.<name>`."""
