"""What is asked of the operating system: files replaced at once, processes that end in time."""
