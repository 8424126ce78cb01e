"""Rows that need no call of their own: results from a store, rows that share a call, leases, writing; NULL for NULL."""
