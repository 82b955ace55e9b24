"""Is this process what a lock says, are all ranks alike, and what came of the patches in this run?"""
