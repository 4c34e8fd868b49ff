"""Rules: read, checked, and what their expressions mean."""
