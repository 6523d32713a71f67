"""Order bugs that were public: each as a small trace, with what its client saw, what is right, and what `check` says.

`python -m demos.museum` walks through them.
"""
