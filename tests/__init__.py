"""The tests, as many processes as there are cores: more threads of NumPy would only wait for each other, spinning."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported: it is read once
