"""The commands, one file each: their options, and which function of the package does the work."""
