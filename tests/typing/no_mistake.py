"""A line that is right, marked as a mistake: both checkers must say so, or the marks in `mistakes.py` prove nothing."""

# pyright: strict

RIGHT: int = 5  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
