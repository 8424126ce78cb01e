"""The exceptions of the library, and the messages, records and tracebacks that are made of errors."""
