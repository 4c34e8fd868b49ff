"""Small ONNX models, as exporters write them, and the scripts that make them; see README.md."""
