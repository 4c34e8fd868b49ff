"""The report as one HTML page that works by itself."""
