"""What jobs get of limits that the service tells: `python -m benchmarks.learned_limits --seeds 10`.

Eight tasks with a coordinator run for four minutes of virtual time, against services that count calls and tell their
limits in headers. Jobs begin with 60 calls a minute; the limit of 240 changes after 110 seconds, or another client uses
a share of it. What is allowed is the limit over the time, without what the other client gets.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics

from tests.kit.coordinators import start_server
from tests.kit.telling_services import JOBS, run_job

__all__ = ("main",)


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.learned_limits", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", help="jobs with this in their name")
    options = parser.parse_args()
    print("| Service | Served of what it allows: median, least | Refused: median, most |\n|---|---|---|")
    with contextlib.closing(start_server()) as server:
        for name, job in JOBS.items():
            if options.only and options.only not in name:
                continue
            found = [run_job(server, job, seed) for seed in range(options.seeds)]
            served, refused = [one.served for one in found], [one.refused for one in found]
            median = statistics.median
            print(
                f"| {name} | {median(served):.1f}%, {min(served):.1f}% | {median(refused):.2f}%, {max(refused):.2f}% |",
                flush=True,
            )


if __name__ == "__main__":
    main()
