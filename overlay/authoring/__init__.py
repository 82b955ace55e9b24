"""What does somebody need who writes a patch?"""
