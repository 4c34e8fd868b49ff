"""Which rules match where in the terms of a model, and which of the matches to make."""
