"""Which known defects does an installation have, what fixes them, and do a job's settings hit them?"""
