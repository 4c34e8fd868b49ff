"""Random models of every op that the normal form and the rules know, and what the engine may make of them."""
