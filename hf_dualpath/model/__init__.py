"""What travels with a checkpoint as remote code: configuration, layers, policies, models, the engine and `generate`.

These files are flat siblings that import nothing of ours outside this room.
"""
