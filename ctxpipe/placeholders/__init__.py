"""Every text that we write into a context and recognize there again.

`placeholders` replace what was offloaded; `summaries` are what a compacted context begins with;
`evidence` names archives after a summary; `notes` say that something is missing, cut or folded.

Anybody can write such a text. So code that finds one may only do less because of it, unless it
knows that we have put it there.
"""
