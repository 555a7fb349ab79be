"""Accuracy on episodes: features are computed once, then evaluation, intervals and calibration use them."""
