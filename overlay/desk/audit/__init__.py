"""Which known defects does an installation have, who mends them, and do the settings of a job meet them?"""
