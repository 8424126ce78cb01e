"""The version of this library: the driver and its executors must have the same."""

__all__ = ("VERSION",)

VERSION = "0.1.0"
