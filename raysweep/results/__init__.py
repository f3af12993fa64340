"""Keeps what a sweep measured, and says which candidate won: journal, Parquet, selection, export, table."""
