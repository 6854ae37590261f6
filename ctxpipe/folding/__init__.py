"""Fold source files: reduce each to the names that it defines.

`definitions` finds the names in a syntax tree, by the table in `languages`. `fold` writes them as
the lines of a folded file. `folder` does both for the stages and runs the parser in a process of
its own.
"""
