"""What the gateway costs: its processor time, delay and memory, against nginx and vllm-router in the same run.

    tests/run --bench [SCENARIO ...]        see `--help`; the README's table is made by `--readme`

    scenarios                what is run, and the rows that it leaves
    session                  the order of runs
    proxies, gateway         what it is run through; of the gateway with everything that it can do switched on
    engine, load, programs   the two programs in tools/: a fake engine, and clients that check every token
    proctree                 processor time and memory of a process with all below it, from /proc
    measures                 bars and verdicts
    report                   tables for the terminal and the README

Runs are interleaved by repetition, so that what else the machine does meets all alike; a ratio is between two runs of
one repetition, and what is shown is the median of all repetitions. The engine speaks TCP to all three, though an
installed gateway speaks to its engines over unix sockets.
"""
