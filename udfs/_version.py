"""The version of this library: the driver and its executors must have the same."""

VERSION = "0.4.0"
