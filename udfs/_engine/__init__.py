"""The engine of one task: takes rows in, makes their calls, and emits their results in the promised order."""
