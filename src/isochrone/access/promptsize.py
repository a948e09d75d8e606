"""How many tokens a prompt has, without a tokenizer.

    tokens = ids + text_bytes * t + cjk_bytes * c + images * i + (messages * m + k, for chats)

Token ids are exact. The five ratios are learnt for each model from the `usage.prompt_tokens` of its answers, each with
its own uncertainty: an error is charged to the terms that are both large in this prompt and not yet well known. So the
first answer with an image teaches tokens an image, and leaves the ratio of plain text alone; Chinese prompts do not
bend the ratio of English ones.

It is a Kalman filter on the logarithms of the ratios with a diagonal covariance, some two dozen operations. Ratios stay
within sane bounds, and an error beyond three sigmas counts as three: an engine that reports nonsense does no lasting
harm.
"""

from collections.abc import Mapping, Sequence
from math import exp, inf, log
from typing import NamedTuple

from isochrone.nouns.request import PromptSize

MODELS_MAX = 256
"""Models told apart; further ones share one set of ratios."""


class Ratio(NamedTuple):
    """What is known of a ratio before any answer, and between which values it stays."""

    prior: float
    least: float
    most: float
    variance: float
    """Of the logarithm of its true value around the prior."""


TEXT = Ratio(1 / 4.0, 1 / 16.0, 1.0, 0.09)
"""Tokens a byte of text. English prose has 4 to 5 bytes a token, code 3, Cyrillic 4 to 6."""
CJK = Ratio(1 / 2.6, 1 / 12.0, 1.0, 0.16)
"""Tokens a byte of Chinese, Japanese and Korean: 3 bytes a character, .5 to 1.3 tokens a character."""
IMAGE = Ratio(576.0, 16.0, 16384.0, 1.0)
"""Tokens an image: 576 is LLaVA's 24x24 patches; others range from 64 to some thousands."""
MESSAGE = Ratio(4.0, 0.5, 64.0, 0.25)
"""Tokens that a chat template adds to a message."""
FRAME = Ratio(12.0, 0.25, 4096.0, 1.0)
"""Tokens that it adds once: begin mark, generation prompt, a built-in system prompt."""
RATIOS = (TEXT, CJK, IMAGE, MESSAGE, FRAME)

VARIANCE_MIN = 2e-4
"""What stays uncertain for ever, so that ratios keep following what prompts look like: a step of some 5 %."""
NOISE = 0.05**2
"""Relative variance of a prompt's tokens around the best ratios: texts differ."""
NOISE_TOKENS = 2.0
"""Tokens by which even a perfect estimate is off: short prompts teach less."""
IMAGE_NOISE = 0.25**2
"""Images differ in size more than texts do."""
CLIP_SIGMAS = 3.0
TOKENS_MAX = 100_000_000
"""Reports above this are not believed."""


class _Ratios:
    """The ratios of one model and the variance of each one's logarithm."""

    __slots__ = ("samples", "values", "variances")

    def __init__(self) -> None:
        self.values = [ratio.prior for ratio in RATIOS]
        self.variances = [ratio.variance for ratio in RATIOS]
        self.samples = 0

    def learn(self, size: PromptSize, counted: float) -> None:
        """One answer: the prompt without its token ids had `counted` tokens."""
        values, variances = self.values, self.variances
        terms = [
            (j, count * values[j])
            for j, count in enumerate((size.text_bytes, size.cjk_bytes, size.images, size.messages, size.messages > 0))
            if count
        ]
        estimate = 0.0
        for _, term in terms:
            estimate += term
        spread = NOISE + (NOISE_TOKENS / counted) ** 2
        for j, term in terms:
            share = term / estimate
            spread += (variances[j] + (IMAGE_NOISE if j == 2 else 0.0)) * share * share
        error = log(counted / estimate)
        limit = CLIP_SIGMAS * spread**0.5
        step = (error if -limit < error < limit else limit if error > 0.0 else -limit) / spread
        for j, term in terms:
            gain = variances[j] * term / estimate
            _, least, most, _ = RATIOS[j]
            value = values[j] * exp(gain * step)
            values[j] = least if value < least else most if value > most else value
            variance = variances[j] - gain * gain / spread
            variances[j] = variance if variance > VARIANCE_MIN else VARIANCE_MIN
        self.samples += 1


class PromptTokens:
    """Tokens of prompts by model. About 0.4 us an estimate, 2 us a lesson."""

    def __init__(self, models_max: int = MODELS_MAX) -> None:
        self._models_max = models_max
        self._models: dict[str, _Ratios] = {}
        self._others = _Ratios()
        """Of all models together: the start of those without a place of their own."""

    def estimate(self, model: str, size: PromptSize) -> int:
        """Prompt tokens, at least 1."""
        text, cjk, image, message, frame = (self._models.get(model) or self._others).values
        if size.token_ids and not (size.text_bytes or size.cjk_bytes or size.images):
            return size.token_ids
        estimate = size.text_bytes * text + size.cjk_bytes * cjk + size.images * image
        if size.messages:
            estimate += size.messages * message + frame
        return size.token_ids + round(estimate) or 1

    def learn(self, model: str, size: PromptSize, prompt_tokens: int) -> None:
        """An answer said how many tokens its prompt had."""
        counted = prompt_tokens - size.token_ids
        if not 0 < counted <= TOKENS_MAX or not (size.text_bytes or size.cjk_bytes or size.images):
            return
        ratios = self._models.get(model)
        if ratios is None:
            if len(self._models) >= self._models_max:
                ratios = self._others
            else:
                ratios = self._models[model] = _Ratios()
        ratios.learn(size, counted)

    def learned(self) -> dict[str, object]:
        """What a warm start needs, as plain JSON values."""
        return {
            model: {"ratios": ratios.values, "variances": ratios.variances, "samples": ratios.samples}
            for model, ratios in self._models.items()
        }

    def restore(self, learned: Mapping[str, object]) -> bool:
        """Take up what `learned` gave, model by model; False where some of it made no sense and was passed over."""
        whole = True
        for model, entry in learned.items():
            ratios = _restored(entry) if isinstance(entry, Mapping) else None
            if ratios is None or len(self._models) >= self._models_max:
                whole = False
            else:
                self._models[model] = ratios
        return whole


def _restored(entry: Mapping[str, object]) -> _Ratios | None:
    values, variances, samples = _five(entry.get("ratios")), _five(entry.get("variances")), entry.get("samples")
    if values is None or variances is None or not (isinstance(samples, int) and samples >= 0):
        return None
    ratios = _Ratios()
    ratios.samples = samples
    ratios.values = [min(max(value, r.least), r.most) for value, r in zip(values, RATIOS, strict=True)]
    ratios.variances = [max(VARIANCE_MIN, min(v, r.variance)) for v, r in zip(variances, RATIOS, strict=True)]
    return ratios


def _five(values: object) -> list[float] | None:
    if not (isinstance(values, Sequence) and len(values) == len(RATIOS)):
        return None
    if not all(isinstance(value, int | float) and 0.0 < value < inf for value in values):
        return None
    return [float(value) for value in values]
