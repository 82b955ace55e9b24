"""Which patches are there, what is installed here, and what is the verdict of the tables on it?

Sources are read and never imported.
"""
