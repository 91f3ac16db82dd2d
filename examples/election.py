"""Who votes how, when only each precinct's result is known? Ecological inference by a classifier of single people.

    python examples/election.py --data-dir DIR

DIR has tabular/mlmRev_Contraception.csv (the Bangladesh fertility survey in the R package mlmRev): 1,934 women of 60
districts, and whether each uses contraception. Read it as an election: a district is a precinct, using it is a vote for
yes, and all that is published is how many yes and no each precinct has; age, number of children and town or country are
in the register of voters. The question is how groups of people voted. The old answer, a regression of precincts'
results on precincts' composition, confuses people with places; the answers of both are compared with the truth, which a
survey has and an election has not.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import pandas as pd

from torchllp import LLPClassifier


def by_regression(share_of_yes: pd.Series, share_of_group: pd.Series, sizes: pd.Series) -> float:
    """Goodman's: the result of a precinct that has only the group, on the line through all precincts."""
    slope, intercept = np.polyfit(share_of_group, share_of_yes, 1, w=np.sqrt(sizes))
    return intercept + slope


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("TORCHLLP_DATA", "data")))
    source = parser.parse_args().data_dir / "tabular" / "mlmRev_Contraception.csv"
    if not source.is_file():
        print(f"skipped: there is no {source}; it is in the R package mlmRev: say where it is by --data-dir")
        return
    people = pd.read_csv(source)
    register = people[["age", "livch", "urban"]]
    results = pd.crosstab(people["district"], people["use"])  # all that is published
    print(f"{len(results)} precincts of {results.sum(axis=1).min()} to {results.sum(axis=1).max()} voters")

    # Means over people are asked for: so every voter counts the same, and every precinct is needed.
    classifier = LLPClassifier(
        "dllp",
        method_options={"bag_weighting": "size"},
        categorical_features=["livch"],
        epochs=30,
        held_out=0,
        random_state=0,
        threads=1,
    ).fit(register, people["district"], results)
    yes = classifier.predict_proba(register)[:, list(classifier.classes_).index("Y")]

    share_of_yes, sizes = results["Y"] / results.sum(axis=1), results.sum(axis=1)
    groups = {"in towns": people["urban"] == "Y", "in the country": people["urban"] == "N"}
    groups |= {f"with {children} children": people["livch"] == children for children in ("0", "1", "2", "3+")}
    print(f"{'share of yes':18}{'truth':>8}{'classifier':>12}{'regression':>12}")
    errors = []
    for name, group in groups.items():
        truth = (people["use"][group] == "Y").mean()
        regression = by_regression(share_of_yes, group.groupby(people["district"]).mean(), sizes)
        errors.append((abs(yes[group].mean() - truth), abs(regression - truth)))
        print(f"{name:18}{truth:8.1%}{yes[group].mean():12.1%}{regression:12.1%}")
    print(f"{'mean error':18}{'':8}{np.mean(errors, axis=0)[0]:12.1%}{np.mean(errors, axis=0)[1]:12.1%}")


if __name__ == "__main__":
    main()
