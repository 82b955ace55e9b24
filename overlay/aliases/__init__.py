"""Who else holds a function that is replaced, and how are they given the replacement?"""
