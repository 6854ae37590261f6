"""Source files folded to the names that they define.

`definitions` finds the names in a syntax tree, by the table in `languages`; `fold` writes them as
the lines of a folded file; `folder` does both for the stages, with the parser in a process of its
own.
"""
