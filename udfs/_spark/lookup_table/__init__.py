"""The table of a LookupTable: its keys, where its rows are stored, which of them count."""
