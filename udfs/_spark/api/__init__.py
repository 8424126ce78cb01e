"""The entry points: they read the arguments of a call, and hand to `_spark` what runs in a worker as well."""
