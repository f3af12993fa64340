"""Files for other frameworks: one measured candidate, told in the words of each."""
