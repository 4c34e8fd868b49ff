"""Models as ONNX has them: files, graphs, types, dimensions."""
