"""What happens in this interpreter between `enable()` and `disable()`: watch, install, rebind, take out?"""
