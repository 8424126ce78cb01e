"""Measures asyncudf beside what it replaces, and says which of its targets are met.

    python -m benchmarks                    every case, full size: an hour, and with --peers three
    python -m benchmarks --quick            a fifth of the rows
    python -m benchmarks --only P3 P4       some cases; --list names them
    python -m benchmarks --peers            with Flink and the others of benchmarks/peers, those that are installed
    python -m benchmarks --json --plot      also writes benchmarks/results/latest.json and an SVG for each case
    python -m benchmarks --load --plot      runs nothing: shows and draws what latest.json holds
    python -m benchmarks --load --docs      and writes it into the tables of the README and docs/performance.md

Run it in the project's folder. A case measures its systems in turn (A B A B), after one round that is not counted,
and reports medians with the smallest and the largest figure. A ratio is the median of the ratios of each round. Only
ratios within one run mean something: times differ between machines and hours.

latest.json has figures of one commit. A run can be made in parts, with --only, as long as the code stays the same;
what a run itself writes (results, tables of the pages) is no change.

A new case is a file in `cases/` and a name in the tuple `CASES`.
"""
