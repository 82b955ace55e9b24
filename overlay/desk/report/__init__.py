"""How does one show somebody else what was decided, on one machine or on all ranks of a job, on one page?

Nothing here is imported by the engine. The page needs the extra `report`: the template library that fills it.
"""
