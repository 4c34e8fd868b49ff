"""The normal form of terms."""
