"""Looks at every node before a sweep is launched, and says of what is wrong: which node, which value, which remedy."""
