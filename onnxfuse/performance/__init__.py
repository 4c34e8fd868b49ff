"""How fast a fused model is: predicted for a GPU, and measured."""
