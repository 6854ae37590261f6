"""Tables of what others say: agents' tools, refusals of models, prices."""
