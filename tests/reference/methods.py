"""Each method's loss from logits, in plain loops. ``frozen`` fixes pseudo-labels and weights at given values."""

import itertools
import math

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from reference.bag_terms import (
    ConfidenceStatistics,
    bag_loss,
    dual_entropy_weights,
    rows_of_bags,
    softmax,
    transport_plans,
)

Frozen = tuple[list[int], Tensor]


def likeliest(P: Tensor) -> list[int]:
    return [max(range(P.shape[1]), key=row.__getitem__) for row in P.tolist()]


def instance_loss(P: Tensor, labels: list[int], trust: Tensor) -> Tensor:
    """Eq. 5."""
    total = torch.zeros((), dtype=P.dtype)
    for j, label in enumerate(labels):
        total = total - trust[j] * P[j, label].log()
    return total / len(P)


def dllp(
    weak, strong, bag_index, p, is_labelled, labels, *, frozen=None, bag_weighting="equal", bag_term="mean"
) -> Tensor:
    return bag_loss(softmax(weak), rows_of_bags(bag_index, len(p)), p, is_labelled.tolist(), bag_weighting, bag_term)


def supervised(weak, strong, bag_index, p, is_labelled, labels, *, frozen=None) -> Tensor:
    P = softmax(weak)
    total = torch.zeros((), dtype=P.dtype)
    for j, label in enumerate(labels.tolist()):
        if label >= 0:
            total = total - P[j, label].log()
    return total / len(P)


def ahil(
    weak,
    strong,
    bag_index,
    p,
    is_labelled,
    labels,
    *,
    frozen: Frozen | None = None,
    instance_weight=0.5,
    beta="fixed",
    beta_bag=1.0,
    beta_instance=1.0,
    weigh_bags=True,
    weigh_instances=True,
    bag_weighting="equal",
    bag_term="mean",
) -> Tensor:
    P, S = softmax(weak), softmax(strong)
    bags = rows_of_bags(bag_index, len(p))
    if frozen is None:
        pseudo_labels = likeliest(P)
        trust = dual_entropy_weights(
            P.detach(),
            pseudo_labels,
            bags,
            p,
            is_labelled.tolist(),
            beta_bag=beta_bag if weigh_bags else None,
            beta_instance=beta_instance if weigh_instances else None,
            auto=0.2 if beta == "auto" else None,
        )
    else:
        pseudo_labels, trust = frozen
    return bag_loss(P, bags, p, is_labelled.tolist(), bag_weighting, bag_term) + instance_weight * instance_loss(
        S, pseudo_labels, trust
    )


def custom(
    weak,
    strong,
    bag_index,
    p,
    is_labelled,
    labels,
    *,
    frozen: Frozen | None = None,
    bag_term="count",
    order=2,
    pseudo_labels="argmax",
    weights="dual-entropy",
    instance_weight=0.5,
    beta_bag=1.0,
    beta_instance=1.0,
    threshold=0.6,
    n_sigma=2.0,
    ema_decay=0.999,
    eps=1.0,
    rounds=25,
    bag_weighting="equal",
) -> Tensor:
    """All but soft labels."""
    P, S = softmax(weak), softmax(strong)
    bags, known = rows_of_bags(bag_index, len(p)), is_labelled.tolist()
    loss = bag_loss(P, bags, p, known, bag_weighting, bag_term, order)
    if pseudo_labels == "none":
        return loss
    if frozen is None:
        chosen = likeliest(P)
        if pseudo_labels == "assignment":
            chosen = feasible(P, bags, p, known)
        elif pseudo_labels == "transport-hard":
            plan = transport_plans(P.detach(), bags, p, known, eps, rounds)
            chosen = [int(plan[j].argmax()) if plan[j].any() else chosen[j] for j in range(len(P))]
        if weights == "threshold":
            trust = torch.tensor([float(P[j, c] > threshold) for j, c in enumerate(chosen)], dtype=P.dtype)
        elif weights == "truncated-gaussian":
            trust = ConfidenceStatistics(P.shape[1], ema_decay).weights(P.detach(), n_sigma, False)
        else:
            trust = dual_entropy_weights(
                P.detach(),
                chosen,
                bags,
                p,
                known,
                beta_bag=beta_bag if weights in ("dual-entropy", "bag") else None,
                beta_instance=beta_instance if weights in ("dual-entropy", "instance") else None,
            )
    else:
        chosen, trust = frozen
    if pseudo_labels == "argmax":
        return loss + instance_weight * instance_loss(S, chosen, trust)
    rows = [j for i, members in enumerate(bags) if known[i] for j in members]
    return loss + instance_weight * instance_loss(S[rows], [chosen[j] for j in rows], trust[rows])


def feasible(P: Tensor, bags: list[list[int]], p: Tensor, is_labelled: list[bool]) -> list[int]:
    """The labels of the largest product of probabilities that have the counts of each bag; of few instances, all."""
    chosen = likeliest(P)
    for i, rows in enumerate(bags):
        if is_labelled[i]:
            places = [c for c, share in enumerate(p[i].tolist()) for _ in range(round(share * len(rows)))]
            log_p = P[rows].detach().log()
            if len(rows) <= 6:
                best = max(
                    itertools.permutations(places), key=lambda labels: sum(log_p[j, c] for j, c in enumerate(labels))
                )
            else:
                best = [places[k] for k in linear_sum_assignment(log_p[:, places].numpy(), maximize=True)[1]]
            for j, c in zip(rows, best, strict=True):
                chosen[j] = c
    return chosen


def llp_pvc(*tensors, frozen=None, **numbers) -> Tensor:
    return custom(*tensors, bag_term="count", pseudo_labels="none", **numbers)


def llp_mm(*tensors, frozen=None, **numbers) -> Tensor:
    return custom(*tensors, bag_term="moments", pseudo_labels="none", **numbers)


def llp_dc(*tensors, bag_term="mean", **numbers) -> Tensor:
    return custom(*tensors, bag_term=bag_term, pseudo_labels="assignment", weights="threshold", **numbers)


def softmatch(
    weak,
    strong,
    bag_index,
    p,
    is_labelled,
    labels,
    *,
    frozen: Frozen | None = None,
    instance_weight=0.5,
    ema_decay=0.999,
    n_sigma=2.0,
    align=False,
    bag_weighting="equal",
) -> Tensor:
    """The first step's loss."""
    P, S = softmax(weak), softmax(strong)
    if frozen is None:
        pseudo_labels = likeliest(P)
        trust = ConfidenceStatistics(P.shape[1], ema_decay).weights(P.detach(), n_sigma, align)
    else:
        pseudo_labels, trust = frozen
    bags = rows_of_bags(bag_index, len(p))
    return bag_loss(P, bags, p, is_labelled.tolist(), bag_weighting) + instance_weight * instance_loss(
        S, pseudo_labels, trust
    )


def rot(
    weak,
    strong,
    bag_index,
    p,
    is_labelled,
    labels,
    *,
    frozen: Tensor | None = None,
    alpha=0.6,
    targets="soft",
    eps=1.0,
    rounds=25,
    bag_weighting="equal",
) -> Tensor:
    """``frozen`` is the plan."""
    P, S = softmax(weak), softmax(strong)
    bags = rows_of_bags(bag_index, len(p))
    plan = transport_plans(P.detach(), bags, p, is_labelled.tolist(), eps, rounds) if frozen is None else frozen
    instance_loss, n = torch.zeros((), dtype=P.dtype), 0
    for i, rows in enumerate(bags):
        if not is_labelled[i]:
            continue
        n += len(rows)
        for j in rows:
            if targets == "hard":
                instance_loss = instance_loss - S[j, plan[j].argmax()].log()
            else:
                instance_loss = instance_loss - (plan[j] * S[j].log()).sum()
    return alpha * bag_loss(P, bags, p, is_labelled.tolist(), bag_weighting) + (1 - alpha) * instance_loss / n


def rlpl(
    weak,
    strong,
    bag_index,
    p,
    is_labelled,
    labels,
    *,
    pairs: tuple[Tensor, Tensor],
    progress: float,
    frozen: tuple[Tensor, list[bool]] | None = None,
    warm_up=0.25,
    instance_weight=1.0,
    guess_weight=1.0,
    threshold=0.6,
    temperature=0.5,
    alpha=0.75,
    eps=1.0,
    rounds=25,
    bag_weighting="equal",
) -> Tensor:
    """``pairs`` are the partner and the share of each row of both views; ``frozen`` the labels and which are sure."""
    P, S, known = softmax(weak), softmax(strong), is_labelled.tolist()
    bags = rows_of_bags(bag_index, len(p))
    loss = bag_loss(P, bags, p, known, bag_weighting)
    if progress < warm_up:
        return loss
    label, sure = frozen or transported_or_guessed(
        P.detach(), S.detach(), bags, p, known, threshold, temperature, eps, rounds
    )
    partner, share = pairs
    logits, n = torch.cat([weak, strong]), len(weak)
    for row in range(2 * n):
        other, own = int(partner[row]), share[row]
        q = softmax((own * logits[row] + (1 - own) * logits[other])[None])[0]
        target = own * label[row % n] + (1 - own) * label[other % n]
        if sure[row % n]:
            loss = loss - instance_weight * (target * q.log()).sum() / (2 * n)
        else:
            loss = loss + instance_weight * guess_weight * ((q - target) ** 2).sum() / (2 * n)
    return loss


def transported_or_guessed(P, S, bags, p, known, threshold, temperature, eps, rounds) -> tuple[Tensor, list[bool]]:
    """The labels of RLPL, and which of them are those of the transport."""
    label, sure = transport_plans(P, bags, p, known, eps, rounds), [False] * len(P)
    for i, rows in enumerate(bags):
        for j in rows:
            sure[j] = known[i] and bool(label[j].max() > threshold)
            if not sure[j]:
                sharp = ((P[j] + S[j]) / 2) ** (1 / temperature)
                label[j] = sharp / sharp.sum()
    return label, sure


def llp_vat(
    weak,
    strong,
    bag_index,
    p,
    is_labelled,
    labels,
    *,
    noise: Tensor,
    progress: float,
    frozen: tuple[Tensor, Tensor] | None = None,
    consistency_weight=0.05,
    ramp_up_share=0.4,
    eps=6.0,
    xi=1e-2,  # logits that are linear in the input have no error from a finite step
    bag_weighting="equal",
) -> Tensor:
    """For a model that returns its input: there the Hessian of KL(p || q) is diag p - p p^T.

    ``frozen`` are the perturbations and the predictions to be kept.
    """
    P = softmax(weak)
    length = eps * math.sqrt(weak.shape[1] / 3072)
    consistency = torch.zeros((), dtype=P.dtype)
    for j in range(len(P)):
        if frozen is None:
            target = P[j].detach()
            start = noise[j] / noise[j].norm()
            gradient = (target.diag() - torch.outer(target, target)) @ start
            direction = gradient / gradient.norm() if gradient.norm() > 0 else start
            perturbation = length * direction
        else:
            perturbation, target = frozen[0][j], frozen[1][j]
        Q = softmax((weak[j] + perturbation)[None])[0]
        for c in range(P.shape[1]):
            consistency = consistency + target[c] * (target[c].log() - Q[c].log())
    weight = consistency_weight
    if progress < ramp_up_share:
        weight *= math.exp(-5 * (1 - progress / ramp_up_share) ** 2)
    bags = rows_of_bags(bag_index, len(p))
    return bag_loss(P, bags, p, is_labelled.tolist(), bag_weighting) + weight * consistency / len(P)


def llpfc(
    weak,
    strong,
    bag_index,
    p,
    is_labelled,
    labels,
    *,
    groups: list[tuple[list[int], list[float]]],
    noisy_prior="uniform",
) -> Tensor:
    """``groups`` are the bags of each group and, for ``noisy_prior="approx"``, how probable each of them is (alpha)."""
    P, gamma = softmax(weak), p.tolist()
    bags = rows_of_bags(bag_index, len(p))
    total = torch.zeros((), dtype=P.dtype)
    for group, alpha in groups:
        C = len(group)
        if noisy_prior == "uniform":
            alpha = [1 / C] * C
        instances_of_group = sum(len(bags[bag]) for bag in group)
        for i, bag in enumerate(group):
            if alpha[i] == 0:
                continue
            T = []  # of this noisy class, for each true class
            for j in range(C):
                column = [gamma[other][j] * alpha[k] for k, other in enumerate(group)]
                T.append(column[i] / sum(column) if sum(column) > 0 else alpha[i])
            noisy = P[bags[bag]] @ torch.tensor(T, dtype=P.dtype)
            total = total - alpha[i] / (len(bags[bag]) / instances_of_group) * noisy.log().sum()
    return total / len(P)


def flmm(
    weak,
    strong,
    bag_index,
    p,
    is_labelled,
    labels,
    *,
    frozen: Frozen | None = None,
    entropy_weight=0.01,
    label_weight=5e-4,
    support=0.03,
    bag_weighting="equal",
) -> Tensor:
    P = softmax(weak)
    bags = rows_of_bags(bag_index, len(p))
    if frozen is None:
        pseudo_labels = likeliest(P)
        trust = torch.zeros(len(P), dtype=P.dtype)
        for i, rows in enumerate(bags):
            enough = math.ceil(support * len(rows) - 1e-9)
            for c in range(P.shape[1]):
                members = [j for j in rows if pseudo_labels[j] == c]
                if is_labelled[i] and p[i, c] > support + 1e-6 and len(members) >= enough:
                    trust[members] = 1.0
    else:
        pseudo_labels, trust = frozen
    entropies = torch.zeros((), dtype=P.dtype)
    for row in P:
        entropies = entropies - (row * row.log()).sum()
    return (
        bag_loss(P, bags, p, is_labelled.tolist(), bag_weighting)
        + entropy_weight * entropies / len(P)
        + label_weight * instance_loss(P, pseudo_labels, trust)
    )
