"""What is said of a model, as plain data."""
