"""Those whom files are written for, and what each of them runs."""
