"""The Renyi divergence of one application of each event, as a ball; and its part of delta.

An event is data here: what it means is in `mechanisms.accounting.events`, and what it costs is
computed anew.
"""

from flint import arb

from mechanisms.accounting import events
from sim.verifying import fixed_batch, selection
from sim.verifying.laws import acceptance
from sim.verifying.moments import Ratio


def divergence(event: events.Event, order: arb) -> arb:
    """The certified divergence at an order, as a ball."""
    match event:
        case events.SampledGaussian(rate, noise):
            return sampled(arb(rate), arb(noise), order)
        case events.FixedBatchGaussian(batch, records, noise):
            return fixed_batch.divergence(arb(batch) / arb(records), arb(noise), order)
        case events.Gaussian(noise):
            return sampled(arb(1), arb(noise), order)
        case events.HeterogeneousGaussian(rate, noise, scale) if scale > 0.0:
            return sampled(arb(rate), arb(noise) * arb(scale), order)
        case events.ImportanceSampledGaussian(batch, clip, total, records, noise):
            factor = arb(clip) / arb(total)
            return sampled(arb(batch) * factor, arb(noise) * factor * arb(records), order)
        case events.NoisyNormSum(rate, noise):
            return sampled(arb(rate), arb(noise) * arb(rate), order)
        case events.VisibleChoice(rate, noise):
            moment = (order * (order - 1) / (2 * arb(noise) ** 2)).exp()
            return (1 - arb(rate) + arb(rate) * moment).log() / (order - 1)
        case events.RandomizedResponse(epsilon):
            return arb(epsilon).min(order * arb(epsilon) ** 2 / 2)
        case events.DpsurStep():
            return _dpsur(event, order)
        case events.ScreenedStep() if event.accounting != "unproved":
            return _screened(event, order)
        case events.Allotment() if event.order == order:
            return arb(event.rdp)
        case events.PaperClaim() | events.PublicLabels() | events.TrialCap() | events.Covered():
            return arb(0)
        case events.SummedShares():
            return arb(0)
    return arb("inf")


def failure(event: events.Event) -> arb:
    """The part of delta that one application uses up."""
    if isinstance(event, events.TrialCap):
        return (1 - arb(event.lowest_acceptance)) ** int(event.most_rejections)
    return arb(event.failure) if isinstance(event, events.SummedShares) else arb(0)


def sampled(rate: arb, noise: arb, order: arb) -> arb:
    """SGM(rate, noise), the larger of both directions."""
    if rate == 1:
        return order / (2 * noise**2)
    ratio = Ratio(rate, noise)
    return ratio.moment(order).max(ratio.moment(1 - order)).log() / (order - 1)


def _dpsur(event: events.DpsurStep, order: arb) -> arb:
    ratio = Ratio(arb(event.sample_rate), arb(event.noise_multiplier))
    rate, (low, high) = arb(event.validation_rate), acceptance(event)
    if event.accounting == "selective":
        return selection.selective(ratio, low, high, rate, order)
    bit = arb(0)
    for one, two in ((low, high), (high, low)):
        mixed = (1 - rate) * one + rate * two
        bit = bit.max(_bernoulli(one, mixed, order)).max(_bernoulli(mixed, one, order))
    public = sampled(*ratio, order) + bit
    if event.accounting == "every-trial":
        return public
    return selection.visible(ratio, low, high, rate, order).min(public)


def _screened(event: events.ScreenedStep, order: arb) -> arb:
    ratio = Ratio(arb(event.sample_rate), arb(event.noise_multiplier))
    if event.accounting == "public-test":
        return sampled(*ratio, order)
    lowest, rate = arb(event.lowest_acceptance), arb(event.test_rate)
    return selection.selective(ratio, lowest, arb(1), rate, order)


def _bernoulli(p: arb, q: arb, order: arb) -> arb:
    """Renyi divergence of Bernoulli(p) from Bernoulli(q)."""
    moment = p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order)
    return moment.log() / (order - 1)
