"""A folder for `PYTHONPATH`: its `sitecustomize` notices a Python that would run an upstream unpatched."""
