"""The step-time model against synthetic engines of known coefficients."""

import math
import random
import statistics

import pytest

from isochrone.instances.steptime import PRIOR, Coefficients, Level, Regressor, StepTimeModel, recentre

ENGINES = {
    "8B on one card": Coefficients(0.012, 66e-6, 8e-8, 2.8e-9),
    "70B on four cards": Coefficients(0.022, 64e-6, 3.3e-8, 1.6e-9),
    "27B on one card": Coefficients(0.050, 2.3e-4, 1.2e-7, 8e-9),
    "small on a CPU": Coefficients(0.004, 3e-4, 1e-7, 1e-8),
    "large on a CPU": Coefficients(1.0, 1e-2, 1e-6, 1e-8),
}


def a_regressor(chance: random.Random) -> Regressor:
    """Four windows of 32 decode steps for each first token, as a gateway sees them."""
    if chance.random() < 0.8:
        batch, context, prefill = chance.randint(1, 64), chance.randint(100, 4000), chance.choice([0, 0, 0, 5000])
        return (32.0, 32.0 * batch + prefill, 32.0 * batch * context, float(prefill * context))
    prompt, batch = chance.randint(50, 12_000), chance.randint(0, 40)
    steps = 1.0 + prompt // 2048
    return (steps, prompt + batch * steps, steps * batch * chance.randint(100, 4000), 0.5 * prompt * prompt)


def seconds(engine: Coefficients, x: Regressor) -> float:
    return sum(part * coefficient for part, coefficient in zip(x, engine, strict=True))


def feed(
    model: StepTimeModel, engine: Coefficients, samples: int, sigma: float, chance: random.Random, slow: float = 1.0
) -> None:
    for _ in range(samples):
        x = a_regressor(chance)
        model.observe(x, slow * seconds(engine, x) * math.exp(chance.gauss(0.0, sigma)))


def error_of(model: StepTimeModel, engine: Coefficients, factor: float = 1.0) -> float:
    """Mean relative error of forecasts on fresh, clean regressors."""
    chance = random.Random(4242)
    xs = [a_regressor(chance) for _ in range(200)]
    return statistics.mean(abs(factor * model.predict(x) / seconds(engine, x) - 1.0) for x in xs)


def median_error(engine: Coefficients, samples: int, sigma: float) -> float:
    """Of nine seeds."""
    errors = []
    for seed in range(9):
        model = StepTimeModel()
        feed(model, engine, samples, sigma, random.Random(seed))
        errors.append(error_of(model, engine))
    return statistics.median(errors)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize(
    ("samples", "sigma", "bound"),
    [
        (20, 0.0, 0.025), (50, 0.0, 0.01), (20, 0.05, 0.03), (50, 0.05, 0.02),
        (50, 0.1, 0.035), (200, 0.1, 0.02), (200, 0.25, 0.05), (500, 0.25, 0.03),
    ],
)  # fmt: skip
def test_any_engine_is_known_soon(engine: Coefficients, samples: int, sigma: float, bound: float) -> None:
    assert median_error(engine, samples, sigma) < bound


def test_coefficients_themselves_are_found() -> None:
    engine = ENGINES["27B on one card"]
    model = StepTimeModel()
    feed(model, engine, 500, 0.02, random.Random(1))
    for found, true in zip(model.coefficients, engine, strict=True):
        assert found == pytest.approx(true, rel=0.1)


def test_noise_that_is_symmetric_in_log_does_not_pull_the_fit_down() -> None:
    """Least squares on x/elapsed against 1 would sit at exp(-1.5 sigma^2) = .87 for sigma .3."""
    engine = ENGINES["8B on one card"]
    model = StepTimeModel()
    feed(model, engine, 5000, 0.3, random.Random(2))
    x = (32.0, 32.0 * 20, 32.0 * 20 * 1000, 0.0)
    assert model.predict(x) / seconds(engine, x) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("factor", [0.01, 0.1, 10.0, 100.0])
def test_an_odd_first_sample_does_not_last(factor: float) -> None:
    """The first request after a start may take a hundred times as long: compilation, cold caches."""
    engine, chance = ENGINES["27B on one card"], random.Random(3)
    model = StepTimeModel()
    feed(model, engine, 1, 0.0, chance, slow=factor)
    feed(model, engine, 30, 0.02, chance)
    assert error_of(model, engine) < 0.05


def test_outliers_are_clipped() -> None:
    engine, chance = ENGINES["8B on one card"], random.Random(4)
    model = StepTimeModel()
    for i in range(600):
        feed(model, engine, 1, 0.05, chance, slow=20.0 if i % 25 == 24 else 1.0)
    assert error_of(model, engine) < 0.05


@pytest.mark.parametrize("seed", range(4))
def test_a_constant_regressor_does_not_wind_up(seed: int) -> None:
    """Ten thousand samples of one kind, then one of another kind. Without the guard the errors are 9 to 50 %."""
    engine, chance = ENGINES["70B on four cards"], random.Random(seed)
    model = StepTimeModel()
    feed(model, engine, 50, 0.05, chance)
    constant = (32.0, 32.0 * 8, 32.0 * 8 * 700.0, 0.0)
    for _ in range(10_000):
        model.observe(constant, seconds(engine, constant) * math.exp(chance.gauss(0.0, 0.25)))
    assert error_of(model, engine) < 0.04
    other = (4.0, 8000.0, 0.0, 3.2e7)
    model.observe(other, 1.3 * seconds(engine, other))
    assert error_of(model, engine) < 0.04
    feed(model, engine, 100, 0.05, chance)
    assert error_of(model, engine) < 0.03


def test_no_coefficient_becomes_negative() -> None:
    """Elapsed times that fall with the KV read: the best fit would be negative."""
    chance = random.Random(6)
    model = StepTimeModel()
    for _ in range(500):
        context = chance.uniform(100.0, 10_000.0)
        model.observe((32.0, 320.0, 320.0 * context, 0.0), 1.0 - 0.4 * context / 10_000.0)
    assert min(model.coefficients) > 0.0
    assert model.predict((32.0, 320.0, 320.0 * 5000.0, 0.0)) == pytest.approx(0.8, rel=0.15)


@pytest.mark.parametrize("elapsed_s", [0.0, -1.0, math.nan, math.inf, 1e9])
def test_absurd_elapsed_times_are_refused(elapsed_s: float) -> None:
    model = StepTimeModel()
    assert model.observe((32.0, 32.0, 0.0, 0.0), elapsed_s) is None
    assert model.coefficients == PRIOR
    assert model.samples == 0


@pytest.mark.parametrize(
    "x", [(0.0, 0.0, 0.0, 0.0), (-1.0, 5.0, 0.0, 0.0), (math.nan, 1.0, 0.0, 0.0), (math.inf, 1.0, 0.0, 0.0)]
)
def test_absurd_regressors_are_refused(x: Regressor) -> None:
    model = StepTimeModel()
    assert model.observe(x, 1.0) is None
    assert model.coefficients == PRIOR


def test_warm_after_enough_samples() -> None:
    model = StepTimeModel()
    feed(model, ENGINES["8B on one card"], 49, 0.1, random.Random(7))
    assert not model.warm(50)
    feed(model, ENGINES["8B on one card"], 1, 0.1, random.Random(8))
    assert model.warm(50)


def test_the_residual_is_what_the_class_does_not_explain() -> None:
    engine, chance = ENGINES["8B on one card"], random.Random(9)
    model = StepTimeModel()
    feed(model, engine, 500, 0.02, chance)
    x = a_regressor(chance)
    residual = model.observe(x, 1.5 * seconds(engine, x), level=math.log(1.2))
    assert residual == pytest.approx(math.log(1.5 / 1.2), abs=0.03)


class Fleet:
    """Some instances of one class, each with its own slowness, sampled in turn."""

    def __init__(self, slowness: list[float], sigma: float, seed: int) -> None:
        self.engine = ENGINES["27B on one card"]
        self.slowness, self.sigma, self.chance = slowness, sigma, random.Random(seed)
        self.model = StepTimeModel()
        self.levels = [Level() for _ in slowness]

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            for slow, level in zip(self.slowness, self.levels, strict=True):
                x = a_regressor(self.chance)
                elapsed_s = slow * seconds(self.engine, x) * math.exp(self.chance.gauss(0.0, self.sigma))
                residual = self.model.observe(x, elapsed_s, level.value)
                assert residual is not None
                level.observe(residual, 1 / 32 if x[0] == 32.0 else 1 / 8)
            recentre(self.levels, self.model)


@pytest.mark.parametrize("seed", range(5))
def test_a_slow_newcomer_is_known_after_twenty_samples(seed: int) -> None:
    fleet = Fleet([2.5, 1.0, 1.0, 1.0], 0.1, seed)
    fleet.run(20)
    assert 1.9 < fleet.levels[0].factor < 3.1
    assert all(0.8 < level.factor < 1.25 for level in fleet.levels[1:])


@pytest.mark.parametrize("seed", range(5))
def test_a_step_of_one_instance_moves_its_level_and_not_the_class(seed: int) -> None:
    fleet = Fleet([1.0] * 8, 0.1, seed)
    fleet.run(200)
    fleet.slowness[3] = 1.6
    fleet.run(20)
    assert 1.35 < fleet.levels[3].factor < 1.85
    assert error_of(fleet.model, fleet.engine) < 0.05
    fleet.run(100)
    assert fleet.levels[3].factor == pytest.approx(1.6, rel=0.12)
    assert error_of(fleet.model, fleet.engine) < 0.05


def test_with_one_instance_the_step_moves_into_the_class() -> None:
    fleet = Fleet([1.0], 0.05, 1)
    fleet.run(200)
    fleet.slowness[0] = 1.6
    fleet.run(40)
    assert fleet.levels[0].factor == pytest.approx(1.0, abs=0.15)
    assert error_of(fleet.model, fleet.engine, 1 / 1.6) < 0.15


def test_recentre_moves_the_median_and_leaves_forecasts_alone() -> None:
    model = StepTimeModel()
    levels = [Level(0.1), Level(0.3), Level(0.9), Level()]
    for level in levels[:3]:
        level.samples = 10
    x = (32.0, 320.0, 1e5, 0.0)
    before = [model.predict(x) * level.factor for level in levels[:3]]
    assert recentre(levels, model) == pytest.approx(0.3)
    assert [level.value for level in levels] == pytest.approx([-0.2, 0.0, 0.6, 0.0])
    assert [model.predict(x) * level.factor for level in levels[:3]] == pytest.approx(before)
    assert recentre([Level()], model) == 0.0


def test_a_level_forgets_by_half_life_and_keeps_its_bounds() -> None:
    level = Level(1.0)
    level.decay(60.0, half_life_s=60.0)
    assert level.value == pytest.approx(0.5)
    assert level.factor == pytest.approx(math.exp(0.5))
    for _ in range(10_000):
        level.observe(50.0, 1 / 8)
    assert level.factor == pytest.approx(100.0)


def test_what_was_learnt_comes_back() -> None:
    model, level = StepTimeModel(), Level()
    feed(model, ENGINES["large on a CPU"], 300, 0.1, random.Random(10))
    level.observe(0.3, 1 / 8)
    again, level_again = StepTimeModel(), Level()
    assert again.restore(model.learned())
    assert level_again.restore(level.learned())
    assert again.coefficients == pytest.approx(model.coefficients)
    assert again.samples == model.samples
    assert (level_again.value, level_again.samples) == (level.value, 1)
    feed(again, ENGINES["large on a CPU"], 300, 0.1, random.Random(11))
    assert error_of(again, ENGINES["large on a CPU"]) < 0.03


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"scale": [1, 1, 1], "ratio": [1, 1, 1, 1], "samples": 1, "sigma": 0.1},
        {"scale": [1, 1, 1, 0], "ratio": [1, 1, 1, 1], "samples": 1, "sigma": 0.1},
        {"scale": [1, 1, 1, "1"], "ratio": [1, 1, 1, 1], "samples": 1, "sigma": 0.1},
        {"scale": [1, 1, 1, 1], "ratio": [1, 1, 1, math.nan], "samples": 1, "sigma": 0.1},
        {"scale": [1, 1, 1, 1], "ratio": [1, 1, 1, 1], "samples": -1, "sigma": 0.1},
        {"scale": [1, 1, 1, 1], "ratio": [1, 1, 1, 1], "samples": 1, "sigma": math.inf},
        {"value": math.nan, "samples": 1, "sigma": 0.1},
    ],
)
def test_nonsense_is_not_taken_up(broken: dict[str, object]) -> None:
    model, level = StepTimeModel(), Level()
    assert not model.restore(broken)
    assert not level.restore(broken)
    assert model.coefficients == PRIOR
    assert level.value == 0.0
