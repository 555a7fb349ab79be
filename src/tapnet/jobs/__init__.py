"""Work that outgrows one process: predicting millions of images, and training many variants.

- storage.py, sources.py: files by path or address (s3://, gs://); folders, lists, Parquet files as chunks of images
- batch.py: chunks of images become Parquet part files, and what is missing there is predicted
- sweep.py: recipes, changes and seeds as runs, each in its own folder
- on_ray.py: both on a Ray cluster; everything else runs in one process, too
"""
