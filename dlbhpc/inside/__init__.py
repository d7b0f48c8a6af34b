"""What runs inside an upstream's process: the step callback and what it is made of.

Valid on Python 3.9, and needs nothing but the standard library, torch and Lightning.
"""
