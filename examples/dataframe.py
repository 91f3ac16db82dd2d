"""From a DataFrame to predictions: clinics report how many of their samples were malignant, and nobody says which."""

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

from torchllp import LLPClassifier

cells = load_breast_cancer(as_frame=True)
clinic = pd.Series(np.random.default_rng(0).integers(60, size=len(cells.data)), name="clinic")
diagnosis = cells.target.map({0: "malignant", 1: "benign"})  # makes the reports, then it is put away
reports = pd.crosstab(clinic, diagnosis)  # how many of each, by clinic

classifier = LLPClassifier(random_state=0).fit(cells.data, clinic, reports)
predicted = classifier.predict(cells.data)  # of any frame with these columns
agreeing = classifier.predict_in_bags(cells.data, clinic, reports)  # as many of each as the clinic reports
print(f"{(predicted == diagnosis).mean():.1%} of the samples are right by themselves")
print(f"{(agreeing == diagnosis).mean():.1%} with labels that agree with the reports")
