"""How onnxruntime is told of ops: by a library that it loads, which calls back for the ops to add."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from onnxfuse.errors import DependencyError
from onnxfuse.model.graph import DOMAIN

from . import library
from .abi import Api, Pointer
from .custom_op import Backend, Op, define, explain

if TYPE_CHECKING:
    from onnxruntime import SessionOptions

_pending = threading.local()
"""`ops` and `domain` of the registration that this thread is in, and `refusal`: why there was none."""


@dataclass(slots=True)
class _Domain:
    """What one SessionOptions object knows of the domain: onnxruntime wants it added once."""

    handle: ctypes.c_void_p = field(default_factory=ctypes.c_void_p)
    ops: set[tuple[Op, Backend]] = field(default_factory=set)


_domains: weakref.WeakKeyDictionary[Any, _Domain] = weakref.WeakKeyDictionary()


def known(session_options: SessionOptions) -> set[str]:
    """The ops that these options have been told of."""
    return {op.name for op, _ in _domains.get(session_options, _Domain()).ops}


def add(session_options: SessionOptions, ops: Iterable[Op], backend: Backend) -> None:
    """Tell these options of ops, beside those that they know.

    Raises DependencyError where the system or the version of onnxruntime is none that this works with.
    """
    path, target = library.loaded()
    domain = _domains.setdefault(session_options, _Domain())
    new = [(op, backend) for op in ops if (op, backend) not in domain.ops]
    if new:
        target.value = ctypes.cast(_callback(), ctypes.c_void_p).value
        _pending.domain, _pending.ops, _pending.refusal = domain, new, None
        session_options.register_custom_ops_library(path)
        if _pending.refusal is not None:
            raise _pending.refusal


@cache
def _callback() -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(_registered)


def _registered(options: int, base: int) -> Pointer:
    """RegisterCustomOps, as onnxruntime_c_api.h has it.  Domains are never freed: sessions point to them."""
    try:
        api = _api(base)
    except DependencyError as refusal:  # there is no status to say it by without the C API
        _pending.refusal = refusal
        return None
    try:
        domain: _Domain = _pending.domain
        is_new = not domain.handle
        if is_new:
            api.check(api.CreateCustomOpDomain(DOMAIN.encode(), ctypes.addressof(domain.handle)))
        for op, backend in _pending.ops:
            api.check(api.CustomOpDomain_Add(domain.handle.value, define(api, op, backend)))
            domain.ops.add((op, backend))
        if is_new:
            api.check(api.AddCustomOpDomain(options, domain.handle.value))
    except BaseException as error:
        return api.status(explain(error))
    return None


@cache
def _api(base: int) -> Api:
    return Api(base)
