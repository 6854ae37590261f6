"""Adapters that make SDKs and agent frameworks send the context instead of the history."""
