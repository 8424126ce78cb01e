"""The entry points: read the arguments of a call, hand them to `_spark`, nothing else."""
