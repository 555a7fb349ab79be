"""Work that outgrows one process: predicting millions of images, and training many variants.

- batch.py: a batch prediction from beginning to end
- sources.py, tables.py: a folder, list file, Parquet file or bucket as chunks of images
- storage.py: files by path or by address (s3://, gs://)
- parts.py: predictions as Parquet part files, and which images they hold already
- prediction.py: a chunk of images becomes a part file
- sweep_file.py, sweep.py: recipes, changes and seeds as runs, each in its own folder
- ray_session.py, ray_prediction.py, ray_sweep.py: the same on a Ray cluster

Everything here runs in one process, too; only the ray_ modules need Ray.
"""
