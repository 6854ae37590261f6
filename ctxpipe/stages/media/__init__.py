"""Move old images and documents to files."""
