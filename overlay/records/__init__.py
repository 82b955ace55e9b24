"""Does this process match a lock, are all ranks alike, and what came of the patches in this run?"""
