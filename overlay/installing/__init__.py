"""How does one patch get into one imported module, and out again?"""
