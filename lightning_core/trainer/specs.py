"""Components as agentlightning 0.3 writes them, in the forms that the registry takes."""

from collections.abc import Mapping

from lightning_core.registry import Kind, Registry


def registry_form(
    kind: Kind, spec: object, *, default: object = None, registry: Registry, fills_in_default: bool = False
) -> object:
    """Return what the registry is to be asked for.

    Besides all that the registry takes, a component may be

    - None: the default one;
    - `"package.module.Class"`, with a dot where the registry wants a colon;
    - `{"type": NAME_OR_PATH, option: value}`;
    - where `fills_in_default`: options alone, for the default component.

    Args:
        kind: What the component is for.
        spec: What was given.
        default: What None stands for.
        registry: Says which names with a dot are names.
        fills_in_default: Whether a mapping without a name is meant for the default component.
    """
    if spec is None:
        return default
    if isinstance(spec, str):
        return _path_or_name(kind, spec, registry)
    if not isinstance(spec, Mapping) or "name" in spec:
        return spec
    options = dict(spec)
    if isinstance(options.get("type"), str):
        return {"name": _path_or_name(kind, options.pop("type"), registry), **options}
    return {"name": default, **options} if fills_in_default else spec


def _path_or_name(kind: Kind, text: str, registry: Registry) -> str:
    module, _, attribute = text.rpartition(".")
    is_dotted = bool(module) and ":" not in text
    if not is_dotted or any(component.name == text for component in registry.components(kind)):
        return text
    return f"{module}:{attribute}"
