"""Pure decisions, messages in and messages out: no await, no disk, no clock, no network."""
