"""Prints the laws of the normal form, in the order in which they are tried: `python -m onnxfuse.terms.normal`."""

from . import normal as normal  # whose laws they are
from .table import LAWS

if __name__ == "__main__":
    for found in LAWS:
        print(f"{found.rewrite.__module__.rpartition('.')[2]:12} {found.equation:80} {' '.join(found.ops)}")
