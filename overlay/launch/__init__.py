"""How is every process of a job enabled at its start, and if it is not, why?"""
