"""Adapters that run other people's loops and clients through a pipeline."""
