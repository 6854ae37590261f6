"""Texts that ctxpipe writes into a context and later recognizes there.

- `placeholders`: in place of an offloaded, shortened or folded text, or of a missing one.
- `summaries`: at the beginning of a compacted context.
- `notes`: in place of earlier steps.
- `locations`, `names`: the URLs, files and folders that such texts refer to.

Users, web pages and models can write such a text too. So code that finds one may only do less
because of it, unless it knows that ctxpipe has written it.
"""
