"""Texts for people: figures with units, and users' values, short, printable and without secrets."""
