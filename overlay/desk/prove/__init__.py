"""Does a patch keep its contract on what is installed here, and what is that worth?

A contract is run twice in a process of its own: on upstream alone, which must fail it, and with the patch.
"""
