"""Logistic regression on the directions of the features. Only the backbone has parameters."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.nn import functional as F

from tapnet.functional import widened
from tapnet.methods.base import LinearHead, Method
from tapnet.methods.centroid import mean_directions

LENGTH = 10.0  # to which features are scaled before the weights are penalized


class LogisticRegression(Method):
    """scikit-learn's logistic regression with C = 1 on features scaled to length 10.

    An example of a class of n counts 1 / n², relative to the mean of all. With 1 / n the losses of the classes would be
    even, but not the answers: a class of few examples fits these closely and other images of it less.

    Its weights lie in the span of the examples, so it is fitted to their coordinates in a basis of it: with 196 classes
    of 3 examples and 2560 features, fitting to the features themselves takes 3.5 times as long.
    """

    batched = False

    def adapt(self, support: Tensor, labels: Tensor, way: int) -> LinearHead:
        from sklearn.linear_model import LogisticRegression as Regression  # takes a second to import

        features = support.detach().double()
        _, centers = mean_directions(features, labels, way)
        basis, coordinates = torch.linalg.qr(LENGTH * F.normalize(features, dim=-1).mT)  # (dim, r), (r, n)
        # scikit-learn fits one weight w to two classes; the penalty of ± w / 2, as of more classes, is half as large
        regression = Regression(C=2.0 if way == 2 else 1.0, tol=1e-6, max_iter=1000)
        weights = torch.bincount(labels)[labels].double().pow(-2)
        warnings.filterwarnings("ignore", "The number of unique classes")  # scikit-learn, of one image per class
        regression.fit(coordinates.mT.cpu().numpy(), labels.cpu().numpy(), (weights / weights.mean()).cpu().numpy())
        weight, bias = (torch.from_numpy(part).to(features) for part in (regression.coef_, regression.intercept_))
        if way == 2:
            weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
        dtype = widened(support).dtype
        return LinearHead((LENGTH * weight @ basis.mT).to(dtype), bias.to(dtype), True, centers.to(dtype))
