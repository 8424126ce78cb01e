"""Texts of users' values for messages: short, printable, without secrets."""
