"""Upstream's own tests, run plain and under overlay, and the difference between the two.

Nothing of this is imported by `overlay.enable()`: the command line gets it when `overlay suite` is asked for.
"""
