"""One command for a machine with a GPU: every kernel checked against float64, and timed against what memory allows.

    python -m benchmarks.gpu

The plan is a list of steps in order of importance; a worker process runs them and writes what it finds, line by line,
to a journal.  A step that fails is a row; one that takes the device with it, or hangs, costs the worker, and another
goes on behind it.
"""
