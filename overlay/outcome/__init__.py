"""What has come of the patches in this run, and where does that stay when the process is gone?"""
