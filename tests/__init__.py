"""The tests of the core. A package, because one that others install has the same name."""
