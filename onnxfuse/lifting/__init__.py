"""A graph of ONNX nodes → terms."""
