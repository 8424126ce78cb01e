"""Measures asyncudf beside what it replaces, and says which of its targets are met.

    python -m benchmarks --list                  the cases, their targets, and how long each takes
    python -m benchmarks --quick --only P3       one case, a tenth of the rows
    python -m benchmarks --peers                 with Flink and the others of benchmarks/peers
    python -m benchmarks --peers --json --docs   the same, and the pages show the figures
    python -m benchmarks --load --docs           runs nothing: writes benchmarks/results/latest.json into the pages

Run it in the project's folder, on Linux, while nothing else runs. Each case measures its systems in turn (A B A B),
five rounds after one that does not count. All systems of a case get the same rows and stay open between the rounds, so
that each of them is warm. A ratio is that of two figures of one round. A target is met, or missed, if all rounds lie on
one side of its bound; otherwise it is open.

A new case is a file in `cases/` and a name in the tuple `CASES`.
"""
