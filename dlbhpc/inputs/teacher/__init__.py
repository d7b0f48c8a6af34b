"""Teachers: a trained checkpoint read without running it, checked, and adapted for its student.

names      what a backbone's state must hold: names and shapes
loading    tensors out of a checkpoint, mapped into memory, everything else inert
family     which kind of model a checkpoint is of
transform  from one vocabulary to the other
adapt      the adapted checkpoint and its provenance, published whole or not at all
unadapted  a teacher that is used as it is, held to what its student's upstream loads

These files need torch alone and Python 3.9, so that they also run inside a teacher's image.
"""
