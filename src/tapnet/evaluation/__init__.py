"""Accuracy on episodes: features once, then evaluation, intervals and calibration over them."""
