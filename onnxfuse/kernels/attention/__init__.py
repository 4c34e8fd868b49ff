"""The kernel of Attention."""
