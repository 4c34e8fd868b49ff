"""The bridge into onnxruntime: its own session, in which fused nodes run kernels of onnxfuse.

`session` opens sessions, `served` says which ops of a model have a kernel, `custom_op` is what onnxruntime calls,
`library` is how it comes to know that, and `abi` is its C API as far as this needs it.
"""
