"""Retrieval from a context: passkey, needles, variables, words, recall."""
