"""How long and how much memory: onnxfuse beside other optimizers, on models that are large in one way each."""
