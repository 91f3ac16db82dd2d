import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    confusion_matrix,
    f1_score,
    precision_score,
    recall_score,
    roc_auc_score,
)
from torch.nn.functional import one_hot

from reference.counts import enumerated, enumerated_report
from torchllp import metrics
from torchllp.metrics import count_score


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 5), st.integers(1, 60))
def test_with_labels_as_in_scikit_learn(seed: int, num_classes: int, num_instances: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    log_p = torch.randn(num_instances, num_classes, generator=generator).log_softmax(1)
    labels = torch.randint(num_classes, (num_instances,), generator=generator)
    predicted = log_p.argmax(1)
    classes = list(range(num_classes))
    confusion = metrics.confusion_matrix(predicted, labels, num_classes)
    assert metrics.accuracy(log_p, labels).item() == pytest.approx(accuracy_score(labels, predicted))
    assert confusion.tolist() == confusion_matrix(labels, predicted, labels=classes).tolist()
    scores = metrics.class_scores(confusion)
    is_there, is_predicted = (np.isin(classes, found) for found in (labels, predicted))
    options = {"labels": classes, "average": None, "zero_division": np.nan}
    recall, precision = recall_score(labels, predicted, **options), precision_score(labels, predicted, **options)
    f1 = np.where(is_there, f1_score(labels, predicted, **options), np.nan)
    for name, expected in {"recall": recall, "precision": precision, "F1": f1}.items():
        assert scores[name].tolist() == pytest.approx(expected.tolist(), nan_ok=True)
    assert (~scores["precision"].isnan()).tolist() == is_predicted.tolist()


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 5), st.integers(1, 60), st.sampled_from([0, 1, 8]))
def test_rankings_as_in_scikit_learn(seed: int, num_classes: int, num_instances: int, decimals: int) -> None:
    """With few decimals many instances tie."""
    generator = torch.Generator().manual_seed(seed)
    log_p = torch.randn(num_instances, num_classes, generator=generator).log_softmax(1).round(decimals=decimals)
    labels = torch.randint(-1, num_classes, (num_instances,), generator=generator)
    average_precision, auc = metrics.average_precision(log_p, labels), metrics.auc(log_p, labels)
    known = labels >= 0
    for c in range(num_classes):
        is_class, score = labels[known] == c, log_p[known, c]
        if is_class.any() and not is_class.all():
            assert average_precision[c].item() == pytest.approx(average_precision_score(is_class, score))
            assert auc[c].item() == pytest.approx(roc_auc_score(is_class, score))
        else:
            assert average_precision[c].isnan()
            assert auc[c].isnan()


def test_rankings_of_impossible_classes_and_of_no_labels() -> None:
    log_p = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]]).log()
    assert metrics.auc(log_p, torch.tensor([0, 1, 1])).tolist() == [0.75, 0.75]
    assert metrics.average_precision(log_p, torch.tensor([0, 1, 1])).tolist() == pytest.approx([0.5, 5 / 6])
    assert metrics.auc(log_p, torch.full((3,), -1)).isnan().all()
    assert metrics.average_precision(log_p, torch.full((3,), -1)).isnan().all()


def test_unknown_labels_do_not_count() -> None:
    log_p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]]).log()
    labels = torch.tensor([0, -1, 1])
    assert metrics.accuracy(log_p, labels) == 0.5
    assert metrics.confusion_matrix(log_p.argmax(1), labels, 2).tolist() == [[1, 0], [1, 0]]
    assert metrics.calibration_error(log_p, labels).item() == pytest.approx(0.4)


def test_calibration_error_is_the_plain_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    log_p = (3 * torch.randn(200, 4, generator=generator, dtype=torch.float64)).log_softmax(1)
    labels = torch.randint(4, (200,), generator=generator)
    confidence, predicted = log_p.exp().max(1)
    total = 0.0
    for b in range(15):
        inside = [j for j in range(200) if b / 15 <= confidence[j] < (b + 1) / 15 or (b == 14 and confidence[j] == 1)]
        if inside:
            right = sum(bool(predicted[j] == labels[j]) for j in inside) / len(inside)
            sure = sum(confidence[j].item() for j in inside) / len(inside)
            total += len(inside) / 200 * abs(right - sure)
    assert metrics.calibration_error(log_p, labels).item() == pytest.approx(total)


def test_normalized_entropy_is_between_0_and_1() -> None:
    log_p = torch.stack([torch.zeros(7), torch.tensor([1e4] + [0.0] * 6)]).log_softmax(1)
    assert metrics.normalized_entropy(log_p).tolist() == pytest.approx([1.0, 0.0], abs=1e-6)


def test_bag_errors_are_means_over_bags() -> None:
    log_p = torch.tensor([[0.8, 0.2], [0.6, 0.4], [0.1, 0.9]]).log()
    errors = metrics.bag_errors(log_p, torch.tensor([0, 0, 1]), torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
    first = 0.5 * math.log(0.5 / 0.7) + 0.5 * math.log(0.5 / 0.3)
    assert errors["bag_kl"].item() == pytest.approx((first + math.log(1 / 0.9)) / 2)
    assert errors["bag_mae"].item() == pytest.approx((0.2 + 0.1) / 2)


def test_the_count_score_of_two_classes_is_a_likelihood_ratio() -> None:
    p = torch.tensor([0.9, 0.3, 0.6, 0.2, 0.5], dtype=torch.float64)
    log_p, bag_index = torch.stack([1 - p, p], 1).log(), torch.tensor([0, 0, 0, 1, 1])
    counts, prior = torch.tensor([[1, 2], [1, 1]]), torch.tensor([0.4, 0.6])
    expected = 0.0
    for rows, count in ((p[:3], 2), (p[3:], 1)):
        by_prior = math.comb(len(rows), count) * 0.6**count * 0.4 ** (len(rows) - count)
        expected += math.log(enumerated(rows.tolist())[count] / by_prior) / 5
    assert count_score(log_p, bag_index, counts, prior).item() == pytest.approx(expected)


def test_the_count_score_of_the_prior_is_zero_and_of_the_truth_is_the_largest() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (300,), generator=generator)
    bag_index = torch.arange(300) // 30
    counts = one_hot(labels, 4).view(10, 30, 4).sum(1)
    prior = counts.sum(0) / 300
    assert count_score(prior.log().expand(300, 4), bag_index, counts, prior).item() == pytest.approx(0, abs=1e-6)
    truth = (5 * one_hot(labels, 4).double()).log_softmax(1)
    smooth = (one_hot(labels, 4).double()).log_softmax(1)
    wrong = (5 * one_hot((labels + 1) % 4, 4).double()).log_softmax(1)
    scores = [count_score(x, bag_index, counts, prior).item() for x in (truth, smooth, wrong)]
    assert scores == sorted(scores, reverse=True) and scores[1] > 0


def test_the_count_score_of_a_certain_mistake_is_finite() -> None:
    log_p = torch.tensor([[1e4, 0.0]] * 3).log_softmax(1)
    score = count_score(log_p, torch.zeros(3, dtype=torch.long), torch.tensor([[1, 2]]), torch.tensor([0.5, 0.5]))
    assert -1e5 < score < -1e3


def test_classes_that_were_not_observed_are_one_class_or_left_out() -> None:
    log_p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64).log()
    shares = torch.tensor([[0.4, 0.3, 0.3], [0.0, 0.0, 1.0]], dtype=torch.float64)
    observed = torch.tensor([[True, False, False], [True, True, True]])
    errors = metrics.bag_errors(log_p, torch.tensor([0, 1]), shares, observed)
    kl = [0.4 * math.log(0.4 / 0.5) + 0.6 * math.log(0.6 / 0.5), -math.log(0.8)]
    assert errors["bag_kl"].item() == pytest.approx(sum(kl) / 2)
    assert errors["bag_mae"].item() == pytest.approx((0.1 + 0.1 + 0.1 + 0.2) / 4)


def test_of_two_classes_one_count_says_all() -> None:
    log_p, bag_index = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]).log(), torch.tensor([0, 0, 0])
    prior = torch.tensor([0.5, 0.5])
    both, one = (
        count_score(log_p, bag_index, torch.tensor([counts]), prior) for counts in ([2.0, 1.0], [2.0, math.nan])
    )
    assert one.item() == pytest.approx(both.item())


@pytest.mark.parametrize(("noise", "scale"), [("gaussian", 1.5), ("laplace", 0.7), ("rounding", 3.0)])
def test_the_count_score_of_noisy_counts_by_enumeration(noise: str, scale: float) -> None:
    p = torch.tensor([0.9, 0.3, 0.6, 0.2, 0.5], dtype=torch.float64)
    log_p, bag_index = torch.stack([1 - p, p], 1).log(), torch.tensor([0, 0, 0, 1, 1])
    reported, prior = torch.tensor([[math.nan, 3.0], [math.nan, 0.0]]), torch.tensor([0.4, 0.6], dtype=torch.float64)
    scales = torch.tensor([scale, scale], dtype=torch.float64)
    score = count_score(log_p, bag_index, reported, prior, noise=noise, scale=scales)
    expected = 0.0
    for rows, z in ((p[:3], 3.0), (p[3:], 0.0)):
        predicted = enumerated_report(rows.logit().tolist(), z, noise, scale)
        expected += predicted - enumerated_report([math.log(0.6 / 0.4)] * len(rows), z, noise, scale)
    assert score.item() == pytest.approx(expected / 5)
