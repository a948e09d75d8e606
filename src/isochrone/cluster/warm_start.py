"""What was learnt, out and in again, so that a restarted gateway need not begin as a stranger."""

from collections.abc import Mapping

from isochrone.cluster.world import World

VERSION = 1


def learned(world: World) -> dict[str, object]:
    """Plain JSON values: step times by class, levels by instance, output lengths, prompt sizes."""
    return {
        "version": VERSION,
        "classes": {name: model.learned() for name, model in world.table.classes().items() if model.samples},
        "levels": {
            instance.id: {**instance.level.learned(), "class": instance.class_name}
            for instance in world.table.by_id.values()
        },
        "lengths": world.lengths.learned(),
        "prompt_tokens": world.prompt_tokens.learned(),
    }


def restore(world: World, values: Mapping[str, object]) -> None:
    """Take up `learned` values. Levels of instances that have not joined yet wait for them."""
    if values.get("version") != VERSION:
        return
    for name, kept in _mapping(values.get("classes")).items():
        world.table.class_model(str(name)).restore(_mapping(kept))
    for instance_id, kept in _mapping(values.get("levels")).items():
        world.table.remember_level(str(instance_id), _mapping(kept))
    world.any_slow = any(one.slowness.slow(one.level) for one in world.table.by_id.values())
    world.lengths.restore(_mapping(values.get("lengths")))
    world.prompt_tokens.restore(_mapping(values.get("prompt_tokens")))


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
