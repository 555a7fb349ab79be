"""Work that outgrows one process: predicting millions of images, and training many variants.

- sources.py: folders, lists, Parquet files and buckets (s3://, gs://) as chunks of images; files by path or address
- batch.py: chunks of images become Parquet part files, and what is missing there is predicted
- sweep.py: recipes, changes and seeds as runs, each in its own folder
- on_ray.py: both on a Ray cluster; everything else runs in one process, too
"""
