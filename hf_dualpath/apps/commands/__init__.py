"""The commands of `dualpath`, each a thin shell over a module of the package.

`add_NAME` describes a command to argparse; heavy imports wait until it runs.
"""
