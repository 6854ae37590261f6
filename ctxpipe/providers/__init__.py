"""Tables of facts about providers and agents: tools, refusals, item types, prices."""
