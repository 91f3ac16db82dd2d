"""RLPL: relabelling by optimal transport, then MixMatch on the sure and the unsure instances, beside the bag loss."""

import torch
from torch import Tensor, nn

from torchllp.bags import Bags
from torchllp.batch import BagBatch
from torchllp.errors import LLPError
from torchllp.functional import log_probabilities, mixing_shares, partners_in_bags
from torchllp.methods.method import Method
from torchllp.methods.numbers import check_below_one, check_not_negative, check_positive, check_whole
from torchllp.methods.pseudo_labels import likeliest_labels, transported_labels
from torchllp.methods.terms import bag_term, check_bag_term, check_bag_weighting
from torchllp.models.batch_norm import unmoved_statistics


class RLPL(Method):
    """RLPL (Chen et al., NeurIPS 2025), as far as its idea is public, for a network that `llp pretrain` began.

    First the bag-level loss alone. Then labels are made by transport to the bag's counts; where one is not sure it is
    the sharpened mean of the predictions for both views; and both views are mixed with others of their bag.

    A step costs two forwards and backwards of both views, one of them before ``warm_up`` is over.

    Args:
        warm_up: share of the training that has the bag-level loss alone.
        instance_weight: weight of the loss of mixed instances.
        guess_weight: weight, in it, of the squared error of instances whose label is a guess.
        threshold: share of an instance that the transport must give to one class for its label to be sure.
        temperature: of the guesses; smaller is sharper.
        alpha: of the Beta distribution of the mixing shares; larger mixes more.
        eps: entropy of the transport plan; smaller is nearer to one class an instance, and needs more rounds.
        rounds: Sinkhorn rounds.
        bag_weighting: ``"equal"`` (every bag counts the same) or ``"size"`` (every instance does).
        bag_term: the bag-level loss: ``"mean"``, ``"count"``, ``"gaussian"`` or ``"moments"``.
    """

    views = ("weak", "strong")

    def __init__(
        self,
        *,
        warm_up: float = 0.25,
        instance_weight: float = 1.0,
        guess_weight: float = 1.0,
        threshold: float = 0.6,
        temperature: float = 0.5,
        alpha: float = 0.75,
        eps: float = 1.0,
        rounds: int = 25,
        bag_weighting: str = "equal",
        bag_term: str = "mean",
    ) -> None:
        super().__init__()
        if not 0 <= warm_up <= 1:
            raise LLPError(f"warm_up must be from 0 to 1, not {warm_up}")
        check_below_one(threshold=threshold)
        check_not_negative(instance_weight=instance_weight, guess_weight=guess_weight)
        check_positive(temperature=temperature, alpha=alpha, eps=eps)
        check_whole(rounds=rounds)
        self.warm_up, self.instance_weight, self.guess_weight = warm_up, instance_weight, guess_weight
        self.threshold, self.temperature, self.alpha = threshold, temperature, alpha
        self.eps, self.rounds = eps, int(rounds)
        self.bag_weighting = check_bag_weighting(bag_weighting)
        self.bag_term = check_bag_term(bag_term)

    def check(self, bags: Bags) -> None:
        bags.need_all_observed("rlpl")

    def forward(self, model: nn.Module, batch: BagBatch) -> dict[str, Tensor]:
        log_p, log_p_strong = log_probabilities(model(batch.both_views())).chunk(2)  # [N, C] each
        loss, bag_kl = bag_term(log_p, batch, self.bag_weighting, term=self.bag_term)
        plan, _ = transported_labels(log_p, batch, eps=self.eps, rounds=self.rounds)
        is_sure = (plan.amax(1) > self.threshold) & batch.is_labelled[batch.bag_index]

        mixed_loss = torch.zeros_like(loss)
        if batch.progress >= self.warm_up:
            guess = torch.stack([log_p, log_p_strong]).detach().logsumexp(0).div(self.temperature).softmax(1)
            label = torch.where(is_sure[:, None], plan, guess)
            mixed_loss = self._mixed_loss(model, batch, label, is_sure)
        return {
            "loss": loss + self.instance_weight * mixed_loss,
            "bag_kl": bag_kl,
            "instance_loss": mixed_loss.detach(),
            "log_p": log_p.detach(),
            "pseudo_labels": likeliest_labels(plan),
            "trust": is_sure.to(log_p.dtype),
        }

    def _mixed_loss(self, model: nn.Module, batch: BagBatch, label: Tensor, is_sure: Tensor) -> Tensor:
        """Of both views, mixed with others of their bag, as are their labels (MixMatch); mean over all instances."""
        keys = batch.draw(lambda number, generator: torch.rand(number, 2, 2, generator=generator))
        share = batch.draw(
            lambda number, generator: mixing_shares(torch.rand(number, 2, generator=generator), self.alpha)
        )
        partner = partners_in_bags(batch.bag_index.repeat(2), torch.cat([keys[:, 0], keys[:, 1]]))
        share = torch.cat([share[:, 0], share[:, 1]])

        def mix(x: Tensor) -> Tensor:
            own = share.view(-1, *[1] * (x.ndim - 1)).to(x.dtype)
            return own * x + (1 - own) * x.index_select(0, partner)

        with unmoved_statistics(model):  # of what is not mixed alone, as at prediction
            log_q = log_probabilities(model(mix(batch.both_views())))
        target = mix(label.repeat(2, 1))
        cross_entropy = -(target * log_q).sum(1)
        squared_error = (log_q.exp() - target).square().sum(1)
        losses = torch.where(is_sure.repeat(2), cross_entropy, self.guess_weight * squared_error)
        return losses.sum() / (2 * batch.num_instances)
