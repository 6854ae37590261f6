"""Readers for recordings, a module for each format. `table` lists them."""
