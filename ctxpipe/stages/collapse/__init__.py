"""Replace old exchanges by notes."""
