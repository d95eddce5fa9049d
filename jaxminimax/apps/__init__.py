"""Applications of the engine: tables, estimators, reports and the command line.

The engine, which is the rest of the package, imports nothing from here before it is asked for.
"""
