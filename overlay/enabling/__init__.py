"""What happens between `enable()` and `disable()` in this interpreter?"""
