"""What people and other programs read: pure functions from a result document to text.

Nothing here measures, decides or reads a store; whatever is printed is already in the document
that `results/document.py` describes.
"""
