"""What a term turns out to be: a causal mask, a number of tokens, a slice of another."""
