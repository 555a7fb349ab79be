"""The forms in which datasets are handed out, a file per form: folders of images, tables, arrays, pickles.

A reader takes a file tree, the class lists of the dataset and a function that logs. It returns the Source in the tree,
or None if it is another form. It reports the splits that the files declare; the dataset's class lists take precedence.
"""
