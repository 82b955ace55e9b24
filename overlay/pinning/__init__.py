"""Is this process what a lock says, and are all ranks the same?"""
