"""Asks torch and DeepSpeed about a candidate before anything runs, in subprocesses of their own."""
