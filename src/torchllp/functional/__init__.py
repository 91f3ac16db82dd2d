"""The mathematics of learning from label proportions as pure functions of tensors or arrays."""

from torchllp.functional.adversarial import adversarial_perturbation, unit_length
from torchllp.functional.assignment import assign_bags, assign_labels, matching_offsets, whole_counts
from torchllp.functional.confidence import truncated_gaussian, uniform_alignment
from torchllp.functional.contrastive import contrast_accuracy, contrast_log_probabilities, nt_xent
from torchllp.functional.count_moments import gaussian_count_loss, moments_loss
from torchllp.functional.count_noise import noise_variance
from torchllp.functional.counts import bag_evidence, count_log_probability, log_odds, whole_bag_counts
from torchllp.functional.dual_entropy import (
    AUTO_BETA,
    auto_beta,
    bag_weight,
    concentration,
    dual_entropy_weight,
    instance_weight,
)
from torchllp.functional.label_noise import draw_groups, noise_transition, simplex_least_squares
from torchllp.functional.mixing import mixing_shares, partners_in_bags
from torchllp.functional.probabilities import entropy, log_probabilities, prediction_kl
from torchllp.functional.proportion import (
    log_mean_probability,
    noise_weight,
    proportion_kl,
    proportion_loss,
    with_rest,
)
from torchllp.functional.reductions import (
    BagColumns,
    bag_entropy,
    bag_logsumexp,
    bag_mean,
    bag_sizes,
    bag_sum,
)
from torchllp.functional.transport import bag_transport
from torchllp.functional.whitening import whitened_linear

__all__ = [
    "AUTO_BETA",
    "BagColumns",
    "adversarial_perturbation",
    "assign_bags",
    "assign_labels",
    "auto_beta",
    "bag_entropy",
    "bag_evidence",
    "bag_logsumexp",
    "bag_mean",
    "bag_sizes",
    "bag_sum",
    "bag_transport",
    "bag_weight",
    "concentration",
    "contrast_accuracy",
    "contrast_log_probabilities",
    "count_log_probability",
    "draw_groups",
    "dual_entropy_weight",
    "entropy",
    "gaussian_count_loss",
    "instance_weight",
    "log_mean_probability",
    "log_odds",
    "log_probabilities",
    "matching_offsets",
    "mixing_shares",
    "moments_loss",
    "noise_transition",
    "noise_variance",
    "noise_weight",
    "nt_xent",
    "partners_in_bags",
    "prediction_kl",
    "proportion_kl",
    "proportion_loss",
    "simplex_least_squares",
    "truncated_gaussian",
    "uniform_alignment",
    "unit_length",
    "whitened_linear",
    "whole_bag_counts",
    "whole_counts",
    "with_rest",
]
