"""The laboratory: replay a recorded conversation through a pipeline, see what its context costs and
what it forgets.
"""
