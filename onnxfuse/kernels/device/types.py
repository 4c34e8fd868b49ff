"""Element types in CUDA C++."""

from __future__ import annotations

TYPES = {
    "float32": "float",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "int64": "long long",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "bool": "bool",
}
"""NumPy's name of an element type → that of CUDA C++."""
